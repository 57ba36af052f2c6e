package cp_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

type fatal interface {
	Helper()
	Fatal(args ...any)
}

var _ fatal = (*testing.T)(nil)

// snapshot is a state's bytes.
func snapshot(t fatal, s *cp.State) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Snapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// restored is a state read back from its bytes.
func restored(t fatal, b []byte) *cp.State {
	t.Helper()
	s := cp.NewState()
	if err := s.Restore(bytes.NewReader(b)); err != nil {
		t.Fatal(err)
	}
	return s
}

// ancestors are those of a range, oldest first.
func ancestors(s *cp.State, id fence.RangeID) (all []fence.RangeID) {
	for a := range s.Ancestors(id, 0) {
		all = append(all, a.ID)
	}
	return all
}

// at is a commit of one range of topic 1: sources and offsets in pairs, and
// offset 0 of the range itself unless they name it.
func at(r uint32, pairs ...uint64) map[fence.RangeID]cp.Position {
	p := cp.Position{rangeID(r): 0}
	if len(pairs) == 1 {
		p[rangeID(r)] = pairs[0]
		pairs = nil
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		p[rangeID(uint32(pairs[i]))] = pairs[i+1]
	}
	return map[fence.RangeID]cp.Position{rangeID(r): p}
}

// restamped is b with the checksum at its end made right, or that would hide all
// the code behind it from a fuzzer.
func restamped(b []byte) []byte {
	n := len(b) - 4
	if n < 0 {
		return b
	}
	return binary.LittleEndian.AppendUint32(b[:n:n], crc32.Checksum(b[:n], crc32.MakeTable(crc32.Castagnoli)))
}

// checkUntil runs a property until it has met what it is about, which a short run may miss by chance: a few
// rounds more, and it fails if none met it.
func checkUntil(t *testing.T, what string, met *int, property func(*rapid.T)) {
	t.Helper()
	for range 20 {
		if rapid.Check(t, property); *met > 0 || t.Failed() {
			return
		}
	}
	t.Errorf("never happened: %s", what)
}

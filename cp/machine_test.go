package cp_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// machine is a state that is checked after every command.
type machine struct {
	*testing.T
	*cp.State
}

func newMachine(t *testing.T) machine { return machine{t, cp.NewState()} }

func id(n byte) fence.TopicID { return fence.TopicID{n} }

func rangeID(seq uint32) fence.RangeID { return fence.RangeID{Topic: id(1), Seq: seq} }

func segID(r, seq uint32) fence.SegmentID { return fence.SegmentID{Range: rangeID(r), Seq: seq} }

// do applies a command that must end as err says, and leave nothing changed if
// it is refused.
func (m machine) do(cmd cp.Command, err error) cp.Reply {
	m.Helper()
	before := snapshot(m.T, m.State)
	r := m.Apply(cmd)
	if !errors.Is(r.Err, err) || (r.Err == nil) != (err == nil) {
		m.Fatalf("%+v: %v, want %v", cmd, r.Err, err)
	}
	if r.Err != nil && !slices.Equal(before, snapshot(m.T, m.State)) {
		m.Fatalf("%+v was refused (%v) and changed the state", cmd, r.Err)
	}
	if err := m.Check(); err != nil {
		m.Fatalf("%+v: %v", cmd, err)
	}
	return r
}

func (m machine) topic(bits uint8) {
	m.Helper()
	m.do(cp.CreateTopic{Name: "logs", Bits: bits, ID: id(1), At: 1000}, nil)
}

func (m machine) register(r, seq uint32, start uint64) cp.RegisterSegment {
	return cp.RegisterSegment{ID: segID(r, seq), Replicas: []cp.NodeID{"a", "b"}, Start: start, Salt: 5, Writer: 6, At: 2000}
}

// fill registers and seals one segment of a range.
func (m machine) fill(r, seq uint32, start, length uint64) {
	m.Helper()
	m.do(m.register(r, seq, start), nil)
	m.do(cp.SealSegment{ID: segID(r, seq), Length: length, Bytes: length * 100, At: 3000}, nil)
}

func span(r *cp.Range) string { return fmt.Sprintf("[%d,%d)", r.Start>>24, r.End>>24) }

func seqs(ids []fence.RangeID) (out []uint32) {
	for _, id := range ids {
		out = append(out, id.Seq)
	}
	return out
}

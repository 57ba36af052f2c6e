package host

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	pb "github.com/lni/dragonboat/v4/raftpb"
)

// long multiplies the number of seeds of a test.
func long(n int) int {
	if os.Getenv("RINGFENCE_LONG") != "" {
		return 20 * n
	}
	return n
}

func next(last slotHeader) (uint64, error) { return last.start + 1, nil }

func openSim(d *simDisk) (*journal, error) {
	return openJournal(d.files(), [2]string{"journal-0", "journal-1"}, [16]byte{7}, true, next, quiet())
}

func mustOpenSim(t *testing.T, d *simDisk) *journal {
	t.Helper()
	j, err := openSim(d)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// dump is an image as bytes, to compare.
func dump(m image) []byte {
	var b []byte
	for _, o := range m.checkpointOps() {
		b = o.append(b)
	}
	return b
}

// raftModel makes the saves that a group of replicas would, at random.
type raftModel struct {
	rng  *rand.Rand
	want image // what saves that were answered amount to

	unsure []op // the save that a power cut interrupted
}

// settle compares a recovered journal with what was answered, with or without the
// save that was not.
func (m *raftModel) settle(t *testing.T, j *journal, where string) {
	t.Helper()
	unsure := m.unsure
	m.unsure = nil
	if bytes.Equal(dump(j.image), dump(m.want)) {
		return
	}
	if unsure != nil {
		m.took(unsure)
		if bytes.Equal(dump(j.image), dump(m.want)) {
			return
		}
	}
	t.Fatalf("%s: recovered\n%s\nwant\n%s", where, describe(j.image), describe(m.want))
}

func describe(m image) string {
	var b strings.Builder
	for _, key := range m.keys() {
		r := m[key]
		fmt.Fprintf(&b, "%s: state %+v, snapshot %d, entries [%d, +%d)\n", key, r.state, r.snap.Index, r.first, len(r.entries))
	}
	return b.String()
}

func (m *raftModel) next() []op {
	key := replicaKey{1 + m.rng.Uint64N(3), 1}
	r := m.want[key]
	if r == nil {
		return []op{{kind: opBootstrap, key: key, boot: pb.Bootstrap{Addresses: map[uint64]string{1: "a"}, Type: pb.ConcurrentStateMachine}}}
	}
	first := r.first
	if first == 0 {
		first = r.snap.Index + 1
	}
	end := first + uint64(len(r.entries)) // the index that comes next
	switch m.rng.IntN(20) {
	case 0: // a leader of a new term overwrites a tail that was not committed
		if len(r.entries) > 0 {
			end = max(r.state.Commit+1, first, end-m.rng.Uint64N(uint64(len(r.entries))))
		}
	case 1: // a snapshot of what is applied
		if r.state.Commit > r.snap.Index {
			return []op{{kind: opSnapshot, key: key, snap: pb.Snapshot{Index: r.state.Commit, Term: 1, ShardID: key.shard}}}
		}
	case 2: // a snapshot from a leader that is far ahead
		return []op{
			{kind: opInstall, key: key, snap: pb.Snapshot{Index: end + 10, Term: r.state.Term + 1, ShardID: key.shard}},
			{kind: opState, key: key, state: pb.State{Term: r.state.Term + 1, Commit: end + 10}},
		}
	}
	n := 1 + m.rng.Uint64N(5)
	var es []pb.Entry
	for i := range n {
		cmd := make([]byte, m.rng.IntN(3000))
		for k := range cmd {
			cmd[k] = byte(m.rng.Uint32())
		}
		es = append(es, pb.Entry{Index: end + i, Term: r.state.Term + 1, Cmd: cmd})
	}
	commit := max(r.state.Commit, end+m.rng.Uint64N(n+1)-1)
	return []op{
		{kind: opEntries, key: key, entries: es},
		{kind: opState, key: key, state: pb.State{Term: r.state.Term + m.rng.Uint64N(2), Vote: 1, Commit: min(commit, end+n-1)}},
	}
}

func (m *raftModel) took(ops []op) {
	for i := range ops {
		if err := m.want.apply(&ops[i]); err != nil {
			panic(err)
		}
	}
}

// Whatever a power cut keeps of the write under way, in whichever phase, the
// journal comes back with every save that was answered and at most the one that
// was not, whole; it never refuses what a crash left, and goes on.
func TestJournalPowerCut(t *testing.T) {
	deaths := map[string]int{}
	opening := 0
	for seed := range uint64(long(30)) {
		rng := rand.New(rand.NewPCG(seed, 4))
		d := newSimDisk(rng)
		m := &raftModel{rng: rng, want: image{}}
		for life := range 6 {
			d = d.reboot()
			d.dieAt = 1 + rng.IntN(40)
			if life == 5 {
				d.dieAt = 0
			}
			j, err := openSim(d)
			if errors.Is(err, errDead) {
				opening++
				deaths[d.died]++
				continue
			}
			if err != nil {
				t.Fatalf("seed %d life %d: %v", seed, life, err)
			}
			m.settle(t, j, fmt.Sprintf("seed %d life %d", seed, life))
			// A small slot makes rotations as frequent as saves.
			j.limit = j.pos + block*(2+rng.Int64N(6))
			for range 60 {
				ops := m.next()
				if err := j.commit(ops...); err != nil {
					if !errors.Is(err, errDead) || !errors.Is(err, ErrFailed) {
						t.Fatalf("seed %d: %v", seed, err)
					}
					deaths[d.died]++
					m.unsure = ops
					break
				}
				m.took(ops)
				if rng.IntN(8) == 0 {
					j.limit = j.pos
				}
				if rng.IntN(10) == 0 {
					j.maintain()
				}
			}
			if !d.dead && life < 5 {
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, phase := range []string{"records", "checkpoint", "header", "growth"} {
		if deaths[phase] == 0 {
			t.Errorf("no power cut hit the phase %q: %v", phase, deaths)
		}
	}
	if opening == 0 {
		t.Error("no power cut hit an opening journal")
	}
	t.Logf("power cuts: %v, %d of them while opening", deaths, opening)
}

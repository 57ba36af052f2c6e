package cp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ringfence/ringfence/cp"
)

// grown is a state with a long history.
func grown(seed uint64, n int) *cp.State {
	s := cp.NewState()
	g := commands{dice: seededDice(seed), s: s}
	for range n {
		s.Apply(g.command())
	}
	return s
}

// H05: the same log gives the same replies and the same bytes on two replicas,
// one of which is written to a snapshot and read back at random places; a
// snapshot read back is the state it was taken from.
func TestH05_ReplayAndSnapshots(t *testing.T) {
	restores := 0
	for seed := range uint64(long(100)) {
		d := seededDice(seed)
		a, b := cp.NewState(), cp.NewState()
		g := commands{dice: d, s: a}
		for range 1 + d(250) {
			cmd := cp.Encode(g.command())
			ra, rb := a.ApplyBytes(cmd), b.ApplyBytes(slices.Clone(cmd))
			if !bytes.Equal(ra.Encode(), rb.Encode()) {
				t.Fatalf("seed %d: %x: %+v and %+v", seed, cmd, ra, rb)
			}
			if d(20) == 0 {
				bytesOf := snapshot(t, b)
				b = restored(t, bytesOf)
				restores++
				if again := snapshot(t, b); !bytes.Equal(again, bytesOf) {
					t.Fatalf("seed %d: a snapshot read back is written as other bytes", seed)
				}
				if err := b.Check(); err != nil {
					t.Fatalf("seed %d: restored: %v", seed, err)
				}
			}
		}
		if !bytes.Equal(snapshot(t, a), snapshot(t, b)) {
			t.Fatalf("seed %d: the replicas differ", seed)
		}
	}
	if restores == 0 {
		t.Error("no replica was ever restored")
	}
}

// H06: a retried proposal is applied twice. Nothing is allocated twice by
// commands that carry their ids, and a seal or a commit answers the same again.
func TestH06_AppliedTwice(t *testing.T) {
	m := newMachine(t)
	m.topic(8)
	for _, cmd := range []cp.Command{m.register(0, 0, 0), cp.SealSegment{ID: segID(0, 0), Length: 9}, commit(1, at(0, 4))} {
		m.do(cmd, nil)
		before := snapshot(t, m.State)
		m.Apply(cmd)
		a, b := cp.NewState(), cp.NewState()
		if err := errors.Join(a.Restore(bytes.NewReader(before)), b.Restore(bytes.NewReader(snapshot(t, m.State)))); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(view(a), view(b)) {
			t.Fatalf("%+v applied twice is not what it is once", cmd)
		}
	}
	m.do(cp.SplitRange{Range: rangeID(0)}, nil)
	m.do(cp.SplitRange{Range: rangeID(0)}, cp.ErrRangeSealed)
}

// view is what readers can see of topic "logs", without its count of changes.
func view(s *cp.State) any {
	type all struct {
		Topic    *cp.Topic
		Ranges   []*cp.Range
		Segments [][]*cp.Segment
		Groups   []any
	}
	v := all{Topic: s.Topic("logs"), Ranges: slices.Collect(s.Ranges("logs"))}
	for _, r := range v.Ranges {
		v.Segments = append(v.Segments, slices.Collect(s.Segments(r.ID)))
	}
	for g := range s.Groups("logs") {
		n, _ := s.Generation(g, "logs")
		v.Groups = append(v.Groups, g, n, s.Positions(g, "logs"))
	}
	return v
}

// Whatever is done to a state, to its clones and to those that adopt a topic of it, none
// sees another's changes, and what a query handed out stays as it was.
func TestClonesAreApart(t *testing.T) {
	total := 0
	adopted := map[string]int{}
	for seed := range uint64(long(60)) {
		d := seededDice(seed)
		states := []*cp.State{grown(seed, 200)}
		want := [][]byte{snapshot(t, states[0])}
		held, copied := []*cp.Segment{}, []cp.Segment{}
		for range 60 {
			i := d(len(states))
			s := states[i]
			if d(6) == 0 && len(states) < 5 {
				states, want = append(states, s.Clone()), append(want, want[i])
			}
			g := commands{dice: d, s: s}
			if d(4) == 0 {
				adopted[adopt(t, s, states[d(len(states))], g.name())]++
			}
			for topic := range s.Topics() {
				for r := range s.Ranges(topic.Name) {
					for seg := range s.Segments(r.ID) {
						held, copied = append(held, seg), append(copied, *seg)
					}
				}
			}
			for range 1 + d(3) {
				s.Apply(g.command())
			}
			want[i] = snapshot(t, s)
			for j, o := range states {
				if !bytes.Equal(snapshot(t, o), want[j]) {
					t.Fatalf("seed %d: a change of state %d changed state %d", seed, i, j)
				}
			}
		}
		for _, s := range states {
			if err := s.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
		for i := range held {
			if !reflect.DeepEqual(*held[i], copied[i]) {
				t.Fatalf("seed %d: a segment that was handed out changed: %+v, was %+v", seed, *held[i], copied[i])
			}
		}
		total += len(held)
	}
	if total == 0 {
		t.Error("no segment was ever handed out")
	}
	other := cp.NewState()
	other.Apply(cp.CreateTopic{Name: "another", Bits: 1, ID: id(1)})
	mine := cp.NewState()
	mine.Apply(cp.CreateTopic{Name: "logs", Bits: 1, ID: id(1)})
	adopted[adopt(t, mine, other, "another")]++
	for _, what := range []string{"taken", "gone", "refused"} {
		if adopted[what] == 0 {
			t.Errorf("no topic was adopted as %s: %v", what, adopted)
		}
	}
}

// adopt has a state adopt a topic of another, which may be itself, and says what came of it.
func adopt(t *testing.T, s, from *cp.State, name string) string {
	t.Helper()
	before, want, source := snapshot(t, s), from.Export(name), snapshot(t, from)
	taken := s.Adopt(from, name)
	if s != from && !bytes.Equal(snapshot(t, from), source) {
		t.Fatal("a state that was adopted from has changed")
	}
	switch {
	case !taken && !bytes.Equal(snapshot(t, s), before):
		t.Fatal("a refused topic changed something")
	case !taken:
		return "refused"
	case !bytes.Equal(s.Export(name), want):
		t.Fatalf("topic %q is not what it was adopted as", name)
	case want == nil:
		return "gone"
	}
	return "taken"
}

// A clone is read by one goroutine while the state it came from changes in
// another: the race detector finds whatever they share and should not.
func TestCloneIsReadBeside(t *testing.T) {
	s := grown(3, 400)
	for round := range 20 {
		clone := s.Clone()
		want := snapshot(t, clone)
		done := make(chan error)
		var twice sync.WaitGroup // two readers clone side by side
		for range 2 {
			twice.Go(func() { s.Clone() })
		}
		twice.Wait()
		go func() {
			var b bytes.Buffer
			err := clone.Snapshot(&b)
			if err == nil && !bytes.Equal(b.Bytes(), want) {
				err = errors.New("the clone changed")
			}
			done <- errors.Join(err, clone.Check())
		}()
		g := commands{dice: seededDice(uint64(round)), s: s}
		for range 100 {
			s.Apply(g.command())
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// Every damage to a snapshot is noticed, and the state stays as it was.
func TestSnapshotDamage(t *testing.T) {
	good := snapshot(t, grown(1, 300))
	if n := restored(t, good).Len(); n == 0 {
		t.Fatal("the snapshot has no topics")
	}
	s := grown(2, 50)
	before := snapshot(t, s)
	try := func(what string, b []byte, want error) {
		t.Helper()
		if err := s.Restore(bytes.NewReader(b)); !errors.Is(err, want) {
			t.Fatalf("%s: %v, want %v", what, err, want)
		}
	}
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 1 << (i % 8)
		want := cp.ErrSnapshot
		if v := binary.LittleEndian.Uint32(bad[8:]); v > 2 {
			want = cp.ErrNewerSnapshot
		}
		try(fmt.Sprintf("bit flipped in byte %d", i), bad, want)
	}
	for i := range good {
		try(fmt.Sprintf("cut at %d", i), good[:i], cp.ErrSnapshot)
	}
	try("longer", append(slices.Clone(good), 0), cp.ErrSnapshot)
	if !bytes.Equal(before, snapshot(t, s)) {
		t.Fatal("a snapshot that was refused changed the state")
	}
}

type failing struct{ after int }

var errDisk = errors.New("disk")

func (f *failing) Write(b []byte) (int, error) {
	if f.after -= len(b); f.after < 0 {
		return 0, errDisk
	}
	return len(b), nil
}

func (f *failing) Read(b []byte) (int, error) { return 0, errDisk }

func TestSnapshotErrors(t *testing.T) {
	s := grown(1, 300)
	size := len(snapshot(t, s))
	for _, after := range []int{0, size / 2, size - 5, size - 1} {
		if err := s.Snapshot(&failing{after: after}); !errors.Is(err, errDisk) {
			t.Errorf("a writer that fails after %d bytes: %v", after, err)
		}
	}
	if err := s.Snapshot(&failing{after: size}); err != nil {
		t.Error(err)
	}
	for _, n := range []int{0, 8, 12, size / 2, size} {
		r := io.MultiReader(bytes.NewReader(snapshot(t, s)[:n]), &failing{})
		if err := cp.NewState().Restore(r); !errors.Is(err, errDisk) {
			t.Errorf("a reader that fails after %d bytes: %v", n, err)
		}
	}
}

// Topics that are there twice, under one identity or out of order, and a topic
// that no history of commands leads to, are refused although every checksum is
// right; so is an export of the latter.
func TestSnapshotInconsistent(t *testing.T) {
	one := func(name string, n byte) []byte { // a topic's part of a snapshot
		s := cp.NewState()
		s.Apply(cp.CreateTopic{Name: name, Bits: 8, ID: id(n)})
		b := snapshot(t, s)
		return b[16 : len(b)-16]
	}
	file := func(topics ...[]byte) []byte {
		b := slices.Concat(snapshot(t, cp.NewState())[:16], slices.Concat(topics...), make([]byte, 4+8+4))
		binary.LittleEndian.PutUint64(b[len(b)-12:], uint64(len(topics)))
		return restamped(b)
	}
	a, b := one("a", 1), one("b", 2)
	if s := restored(t, file(a, b)); s.Len() != 2 {
		t.Fatalf("%d topics of two", s.Len())
	}
	m := newMachine(t)
	m.topic(8)
	m.fill(0, 0, 0, 5)
	lower := func(b []byte) []byte { // the range's next offset, below its last segment's end
		at := bytes.Index(b, []byte{5, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0})
		if at < 0 {
			t.Fatal("no floors found")
		}
		b = slices.Clone(b)
		b[at] = 4
		return restamped(b)
	}
	for what, b := range map[string][]byte{
		"twice": file(a, a), "order": file(b, a), "identity": file(a, one("b", 1)), "floor": lower(snapshot(t, m.State)),
	} {
		err := cp.NewState().Restore(bytes.NewReader(b))
		if !errors.Is(err, cp.ErrSnapshot) || strings.Contains(err.Error(), "checksum") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if r := cp.NewState().Apply(cp.InsertTopic{Export: lower(m.Export("logs"))}); r.Err != cp.ErrInvalidExport {
		t.Errorf("an export no history leads to: %v", r.Err)
	}
}

// golden compares bytes with a file that pins the format; RINGFENCE_GOLDEN=1
// writes it anew.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("RINGFENCE_GOLDEN") != "" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%s has other bytes: a log or snapshot that exists could not be read any more", name)
	}
}

// The formats that replicas and disks hold do not change by accident.
func TestGolden(t *testing.T) {
	s := cp.NewState()
	var log bytes.Buffer
	run := func(cmds []cp.Command) {
		for _, cmd := range cmds {
			r := s.ApplyBytes(cp.Encode(cmd))
			if r.Err != nil {
				t.Fatalf("%+v: %v", cmd, r.Err)
			}
			fmt.Fprintf(&log, "%T\n  %x\n  %x\n", cmd, cp.Encode(cmd), r.Encode())
		}
	}
	check := func(file string) {
		golden(t, file, snapshot(t, s))
		if err := restored(t, snapshot(t, s)).Check(); err != nil {
			t.Fatal(err)
		}
	}
	run(topicCommands())
	check("snapshot.golden")
	run(userCommands())
	check("users.golden")
	run(memberCommands())
	golden(t, "log.golden", log.Bytes())
}

// A snapshot without users is one that software reads which knows none, and one with
// users is no other.
func TestSnapshotVersions(t *testing.T) {
	s := cp.NewState()
	s.Apply(cp.PutUser{Name: "alice"})
	if v := binary.LittleEndian.Uint32(snapshot(t, s)[8:]); v != 2 {
		t.Errorf("with a user it has version %d", v)
	}
	s.Apply(cp.DeleteUser{Name: "alice"})
	plain := snapshot(t, s)
	if v := binary.LittleEndian.Uint32(plain[8:]); v != 1 {
		t.Errorf("without users it has version %d", v)
	}
	none := slices.Concat(plain[:8], []byte{2, 0, 0, 0}, plain[12:16], []byte{0, 0, 0, 0}, plain[16:])
	if err := cp.NewState().Restore(bytes.NewReader(restamped(none))); !errors.Is(err, cp.ErrSnapshot) {
		t.Errorf("version 2 without users: %v", err)
	}
}

// everyCommand is a history that is accepted and holds a command of each kind.
func everyCommand() []cp.Command {
	return slices.Concat(topicCommands(), userCommands(), memberCommands())
}

func memberCommands() []cp.Command {
	return []cp.Command{cp.CommitRanges{Group: "h", Topic: "logs", Generation: 7, Sources: pos(0, 100)}}
}

func userCommands() []cp.Command {
	token := func(n byte) cp.Token {
		return cp.Token{ID: cp.TokenID{n}, Sum: [32]byte{n, 1}, Name: "ci", Created: 7, Expires: 1_800_000_000_000}
	}
	return []cp.Command{
		cp.PutUser{Name: "admin", Hash: []byte("$argon2id$v=19$m=8,t=1,p=1$c2FsdA$aGFzaA"), Grants: []cp.Grant{cp.Administrator}, At: 5},
		cp.PutUser{Name: "zoë", At: 6},
		cp.PutUser{Name: "zoë", Hash: []byte("other"), Replace: true, At: 7},
		cp.PutUser{Name: "gone"},
		cp.SetGrant{User: "zoë", Grant: cp.Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "orders*"}},
		cp.SetGrant{User: "zoë", Grant: cp.Grant{Kind: cp.OnGroup, Op: cp.Consume, Pattern: "billing"}},
		cp.SetGrant{User: "zoë", Grant: cp.Grant{Kind: cp.OnTopic, Op: cp.Delete, Pattern: "x"}},
		cp.SetGrant{User: "zoë", Grant: cp.Grant{Kind: cp.OnTopic, Op: cp.Delete, Pattern: "x"}, Revoke: true},
		cp.PutToken{User: "zoë", Token: token(2)},
		cp.PutToken{User: "zoë", Token: token(1)},
		cp.PutToken{User: "gone", Token: token(3)},
		cp.DeleteToken{ID: cp.TokenID{2}},
		cp.SetQuota{User: "zoë", Quota: cp.Quota{Records: 1000, Bytes: 1 << 20}},
		cp.DeleteUser{Name: "gone"},
	}
}

// topicCommands are those about topics and policies.
func topicCommands() []cp.Command {
	donor := cp.NewState()
	donor.Apply(cp.CreateTopic{Name: "moved", Bits: 4, ID: id(9), At: 77})
	return []cp.Command{
		cp.CreateTopic{Name: "logs", Bits: 8, ID: id(1), At: 1_700_000_000_000},
		cp.RegisterSegment{ID: segID(0, 0), Replicas: []cp.NodeID{"n1", "n2", "n3"}, Salt: 0x0102030405060708, Writer: math.MaxUint64, At: 1},
		cp.SealSegment{ID: segID(0, 0), Length: 100, Bytes: 4096, At: 2},
		cp.SetSegmentReplicas{ID: segID(0, 0), Replicas: []cp.NodeID{"n2", "n1"}},
		cp.CommitOffset{Group: "g", Topic: "logs", Generation: 1, Positions: at(0, 40)},
		cp.SplitRange{Range: rangeID(0)},
		cp.MergeRanges{A: rangeID(2), B: rangeID(1)},
		cp.CommitOffset{Group: "g", Topic: "logs", Generation: 2, Positions: at(3, 0, 50), Reset: true},
		cp.RegisterSegment{ID: segID(3, 0), Replicas: []cp.NodeID{"n1"}, Salt: 1, Writer: 2, At: 3},
		cp.SealSegment{ID: segID(3, 0), Length: 1, Bytes: 1, At: 4},
		cp.DeleteSegment{ID: segID(3, 0)},
		cp.RegisterSegment{ID: segID(3, 1), Replicas: []cp.NodeID{"n1"}, Start: 1, Salt: 3, Writer: 2, At: 5},
		cp.FenceGroup{Group: "h", Topic: "logs", Generation: 7},
		cp.FenceGroup{Group: "i", Topic: "logs", Generation: 7},
		cp.DeleteGroup{Group: "i", Topic: "logs"},
		cp.DefinePolicy{Name: "p", Policy: cp.Policy{MaxAge: cp.Limit(5), MaxBytes: cp.Unlimited(), SpreadBy: cp.SpreadOver("rack")}},
		cp.DefinePolicy{Name: "q"},
		cp.DeletePolicy{Name: "q"},
		cp.BindTopicPolicy{Topic: "logs", Policy: "p"},
		cp.InsertTopic{Export: donor.Export("moved")},
		cp.BeginMigration{Topic: "moved"},
		cp.EndMigration{Topic: "moved"},
		cp.BeginMigration{Topic: "moved"},
		cp.CreateTopic{Name: "sealed", Bits: 1, ID: id(2)},
		cp.SealTopic{Name: "sealed"},
		cp.CreateTopic{Name: "deleted", Bits: 1, ID: id(3)},
		cp.DeleteTopic{Name: "deleted"},
		cp.CreateTopic{Name: "extracted", Bits: 1, ID: id(4)},
		cp.ExtractTopic{Topic: "extracted"},
	}
}

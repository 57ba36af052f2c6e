package server

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

var testGroup = groupKey{"t", "g"}

// desk is a coordinator with a clock, asked about one group.
type desk struct {
	*testing.T
	*coordinator
	now    time.Time
	unread []uint32
}

func newDesk(t *testing.T, ranges int) *desk {
	d := &desk{T: t, coordinator: newCoordinator(7<<32, 30*time.Second, 10, 1000), now: time.Unix(1000, 0)}
	for i := range ranges {
		d.unread = append(d.unread, uint32(i))
	}
	return d
}

func (d *desk) enter(name string) assignment {
	d.Helper()
	a, err := d.join(d.now, testGroup, "id", name, 1, d.unread)
	if err != nil {
		d.Fatal(err)
	}
	d.sound()
	return a
}

// beat is a heartbeat of a member that has adopted a generation.
func (d *desk) beat(name string, adopted uint64) assignment {
	d.Helper()
	a, err := d.heartbeat(d.now, testGroup, name, adopted)
	if err != nil {
		d.Fatal(err)
	}
	d.sound()
	return a
}

// settled has every member adopt what it is told until nothing changes.
func (d *desk) settled() map[string][]uint32 {
	d.Helper()
	have := map[string]assignment{}
	for {
		news := false
		for _, name := range slices.Sorted(maps.Keys(d.groups[testGroup].members)) {
			a, known := have[name]
			if !known {
				a.generation = d.groups[testGroup].members[name].joined
			}
			have[name] = d.beat(name, a.generation)
			news = news || have[name].generation != a.generation
		}
		if !news {
			out := map[string][]uint32{}
			for name, a := range have {
				out[name] = a.ranges
			}
			return out
		}
	}
}

// sound checks what holds of a coordinator at any time.
func (d *desk) sound() {
	d.Helper()
	if err := d.check(); err != nil {
		d.Fatal(err)
	}
}

func (c *coordinator) check() error {
	for key, g := range c.groups {
		if g.key != key || g.generation > c.last || len(g.members) > c.maxMembers {
			return fmt.Errorf("group %v: key %v, generation %d of %d, %d members", key, g.key, g.generation, c.last, len(g.members))
		}
		least, most := math.MaxInt, 0
		count := map[string]int{}
		for seq, r := range g.grants {
			switch {
			case r.owner != "" && g.members[r.owner] == nil, r.holder != "" && g.members[r.holder] == nil && !r.over:
				return fmt.Errorf("range %d is of one who is gone: %+v", seq, r)
			case r.owner == "" && r.unread && len(g.members) > 0:
				return fmt.Errorf("range %d has no owner: %+v", seq, r)
			case r.holder == "" && len(g.members) > 0:
				return fmt.Errorf("nobody reads range %d: %+v", seq, r)
			case r.holder == r.owner && r.asked != 0 && !r.over, r.holder != r.owner && r.asked == 0:
				return fmt.Errorf("range %d: asked %d: %+v", seq, r.asked, r)
			}
			if r.unread {
				count[r.owner]++
			}
		}
		for name := range g.members {
			least, most = min(least, count[name]), max(most, count[name])
		}
		if len(g.members) > 0 && most-least > 1 {
			return fmt.Errorf("shares of %d to %d ranges: %v", least, most, count)
		}
	}
	return nil
}

func wantCode(t *testing.T, err error, code wire.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("got %v, want %v", err, code)
	}
}

// A joiner only takes, a leaver moves only its own ranges, and nobody gets a range that
// another one has not let go.
func TestAssignmentIsSticky(t *testing.T) {
	d := newDesk(t, 7)
	a := d.enter("a")
	if len(a.ranges) != 7 || a.generation>>32 != 7 {
		t.Fatalf("the first member has %+v", a)
	}
	b := d.enter("b")
	if len(b.ranges) != 0 {
		t.Fatalf("the second one has %v before the first has let go", b.ranges)
	}
	told := d.beat("a", a.generation)
	if !slices.Equal(told.ranges, []uint32{0, 1, 2, 3}) {
		t.Fatalf("the first is to keep %v", told.ranges)
	}
	if b = d.beat("b", b.generation); len(b.ranges) != 0 {
		t.Fatalf("told is not done: %v", b.ranges)
	}
	d.beat("a", told.generation)
	if b = d.beat("b", b.generation); !slices.Equal(b.ranges, []uint32{4, 5, 6}) {
		t.Fatalf("the second one gets %v", b.ranges)
	}
	before := d.settled()
	d.enter("c")
	after := d.settled()
	for name, ranges := range before {
		for _, seq := range after[name] {
			if !slices.Contains(ranges, seq) {
				t.Errorf("%s got range %d because somebody joined", name, seq)
			}
		}
	}
	if err := d.leave(d.now, testGroup, "a", d.groups[testGroup].generation); err != nil {
		t.Fatal(err)
	}
	last := d.settled()
	for _, name := range []string{"b", "c"} {
		for _, seq := range after[name] {
			if !slices.Contains(last[name], seq) {
				t.Errorf("%s lost range %d because somebody left", name, seq)
			}
		}
	}
}

// L05: a member that leaves in good order passes its ranges on at once; one that is
// killed does when its session is over.
func TestL05_LeaveAndSilence(t *testing.T) {
	d := newDesk(t, 2)
	d.enter("a")
	d.enter("b")
	d.enter("c")
	d.settled()
	if err := d.leave(d.now, testGroup, "a", d.last); err != nil {
		t.Fatal(err)
	}
	if got := d.settled(); len(got["b"])+len(got["c"]) != 2 {
		t.Fatalf("after one left the others have %v", got)
	}
	if err := d.leave(d.now, testGroup, "a", d.last); err != nil {
		t.Fatalf("leaving again: %v", err)
	}
	gen := d.groups[testGroup].generation
	d.now = d.now.Add(20 * time.Second)
	d.beat("b", gen)
	if due := d.due(d.groups[testGroup]); !due.Equal(d.now.Add(10 * time.Second)) {
		t.Fatalf("the silent one is due at %v, now is %v", due, d.now)
	}
	d.now = d.now.Add(10*time.Second - 1)
	if got := d.beat("b", gen); len(got.ranges) == 2 {
		t.Fatal("c is out before its session is over")
	}
	d.now = d.now.Add(1)
	if got := d.beat("b", gen); len(got.ranges) != 2 {
		t.Fatalf("b has %v when c's session is over", got.ranges)
	}
	_, err := d.heartbeat(d.now, testGroup, "c", gen)
	wantCode(t, err, wire.CodeUnknownMember)
}

// A member that hears that it is to let go and does not keeps the others waiting for a
// session, no longer, and commits of it are refused then.
func TestWhoDoesNotLetGo(t *testing.T) {
	d := newDesk(t, 2)
	a := d.enter("a")
	b := d.enter("b")
	for range 4 {
		d.now = d.now.Add(7 * time.Second)
		d.beat("a", a.generation)
		if got := d.beat("b", b.generation); len(got.ranges) != 0 {
			t.Fatal("b reads what a has not let go")
		}
	}
	p, err := d.begin(d.now, testGroup, "a", a.generation, []uint32{0, 1})
	if err != nil {
		t.Fatalf("a still has both: %v", err)
	}
	d.now = d.now.Add(2 * time.Second)
	if got := d.beat("b", b.generation); len(got.ranges) != 0 {
		t.Fatal("b reads what a is committing")
	}
	_, err = d.begin(d.now, testGroup, "a", a.generation, []uint32{1})
	wantCode(t, err, wire.CodeStaleGeneration)
	d.end(d.now, p)
	d.sound()
	if got := d.beat("b", b.generation); !slices.Equal(got.ranges, []uint32{1}) {
		t.Fatalf("b has %v", got.ranges)
	}
	if d.handOvers != 1 {
		t.Errorf("%d ranges were handed over, want 1", d.handOvers)
	}
	_, err = d.begin(d.now, testGroup, "a", a.generation, []uint32{1})
	wantCode(t, err, wire.CodeStaleGeneration)
}

// L04: a commit that comes late, after its range was passed on and even when it has come
// back, is refused; one of the generation before is not while the range stayed.
func TestL04_LateCommit(t *testing.T) {
	d := newDesk(t, 2)
	a := d.enter("a")
	d.enter("b")
	late := a.generation
	a = d.beat("a", a.generation) // it is to let go of range 1
	if _, err := d.begin(d.now, testGroup, "a", late, []uint32{1}); err != nil {
		t.Fatalf("it has it still: %v", err)
	}
	d = newDesk(t, 2)
	late = d.enter("a").generation
	d.enter("b")
	d.settled()
	commit := func(name string, generation uint64, seq uint32) error {
		p, err := d.begin(d.now, testGroup, name, generation, []uint32{seq})
		if err == nil {
			d.end(d.now, p)
		}
		d.sound()
		return err
	}
	if err := commit("a", late, 0); err != nil {
		t.Fatalf("range 0 was a's all along: %v", err)
	}
	wantCode(t, commit("a", late, 1), wire.CodeStaleGeneration)
	wantCode(t, commit("a", d.last, 1), wire.CodeStaleGeneration)
	wantCode(t, commit("b", d.last, 0), wire.CodeStaleGeneration)
	wantCode(t, commit("a", d.last, 9), wire.CodeStaleGeneration)
	wantCode(t, commit("a", d.last+1, 0), wire.CodeStaleGeneration)
	wantCode(t, commit("x", d.last, 0), wire.CodeUnknownMember)
	if err := d.leave(d.now, testGroup, "b", d.last); err != nil {
		t.Fatal(err)
	}
	d.settled()
	wantCode(t, commit("a", late, 1), wire.CodeStaleGeneration) // of the time before b had it
	if err := commit("a", d.last, 1); err != nil {
		t.Fatal(err)
	}
}

// L07: 200 members are started one after another, with every request repeated, then all
// are started again under their names. The group has no more members than there are,
// changes no more often than something happens, and whoever is not concerned keeps its
// ranges.
func TestL07_JoinStorm(t *testing.T) {
	const members, ranges = 200, 256
	d := newDesk(t, ranges)
	name := func(i int) string { return fmt.Sprintf("m%03d", i) }
	for i := range members {
		d.enter(name(i))
		before := d.last
		d.enter(name(i)) // the answer came too late
		if d.last != before {
			t.Fatalf("a join that was repeated changed something")
		}
	}
	if n := len(d.groups[testGroup].members); n != members {
		t.Fatalf("%d members", n)
	}
	got := d.settled()
	if n := d.last - 7<<32; n > 4*members+ranges {
		t.Errorf("%d generations for %d joins and %d ranges", n, members, ranges)
	}
	before := d.last
	for i := range members { // a rolling restart: other processes of the same names
		if _, err := d.join(d.now, testGroup, "id", name(i), 2, d.unread); err != nil {
			t.Fatal(err)
		}
		d.sound()
	}
	if n := d.last - before; n > 2*members {
		t.Errorf("%d generations for %d restarts", n, members)
	}
	if again := d.settled(); !maps.EqualFunc(got, again, slices.Equal) {
		t.Error("ranges moved although every member came back")
	}
	_, err := d.heartbeat(d.now, testGroup, name(0), before)
	wantCode(t, err, wire.CodeStaleGeneration) // the process before
	err = d.leave(d.now, testGroup, name(0), before)
	wantCode(t, err, wire.CodeStaleGeneration)
	d.now = d.now.Add(time.Hour)
	d.update(d.now, testGroup, "id", d.unread)
	if len(d.groups) != 0 {
		t.Error("a group of silent members stays")
	}
}

func TestGroupsAreBounded(t *testing.T) {
	d := newDesk(t, 1)
	d.maxMembers, d.maxGroups = 2, 2
	d.enter("a")
	d.enter("b")
	_, err := d.join(d.now, testGroup, "id", "c", 1, nil)
	wantCode(t, err, wire.CodeOverloaded)
	if _, err = d.join(d.now, groupKey{"t", "h"}, "id", "a", 1, nil); err != nil {
		t.Fatal(err)
	}
	_, err = d.join(d.now, groupKey{"t", "i"}, "id", "a", 1, nil)
	wantCode(t, err, wire.CodeOverloaded)
	d.now = d.now.Add(30 * time.Second)
	if _, err = d.join(d.now, groupKey{"t", "i"}, "id", "a", 1, nil); err != nil {
		t.Fatalf("nobody is heard of in the other groups: %v", err)
	}
	_, err = d.join(d.now, testGroup, "id", "", 1, nil)
	wantCode(t, err, wire.CodeInvalidGroup)
}

// A topic that was deleted and made again under its name has other ranges.
func TestGroupOfATopicMadeAgain(t *testing.T) {
	d := newDesk(t, 1)
	a := d.enter("a")
	d.update(d.now, testGroup, "another", d.unread)
	_, err := d.heartbeat(d.now, testGroup, "a", a.generation)
	wantCode(t, err, wire.CodeUnknownMember)
	again, err := d.join(d.now, testGroup, "another", "a", 1, d.unread)
	if err != nil || again.generation <= a.generation || len(again.ranges) != 1 {
		t.Fatalf("%+v, %v", again, err)
	}
}

package server

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// shop is a log of eight keys whose ranges split and merge, a group that has committed
// some of it, and the programs that are its members.
type shop struct {
	t       *testing.T
	rng     *rand.Rand
	c       *coordinator
	now     time.Time
	ranges  []*modelRange
	written [8]int // records of each key
	seen    [8]int // of these, how many have been handed out, in order
	members map[string]*program
	born    uint64
	moved   int // ranges that a program got behind another one
	again   int // records that were handed out again
	late    int // commits that were refused
}

type modelRange struct {
	start, end int // of the keys
	parents    []int
	sealed     bool
	records    []modelRecord
	committed  int
}

type modelRecord struct{ key, n int }

// program is a member as a client is one.
type program struct {
	instance uint64
	told     assignment
	adopted  uint64
	at       map[uint32]int // of the ranges that it reads, the next record
	delayed  []commitLater
}

// commitLater is a commit that is on its way.
type commitLater struct {
	name       string
	generation uint64
	at         map[uint32]int
}

func (w *shop) unread() (list []uint32) {
	for i, r := range w.ranges {
		if !w.finished(i) && !slices.ContainsFunc(r.parents, func(p int) bool { return !w.ancestorsDone(p) }) {
			list = append(list, uint32(i))
		}
	}
	return list
}

func (w *shop) finished(i int) bool {
	return w.ranges[i].sealed && w.ranges[i].committed == len(w.ranges[i].records)
}

func (w *shop) ancestorsDone(i int) bool {
	return w.finished(i) && !slices.ContainsFunc(w.ranges[i].parents, func(p int) bool { return !w.ancestorsDone(p) })
}

func (w *shop) active() (list []int) {
	for i, r := range w.ranges {
		if !r.sealed {
			list = append(list, i)
		}
	}
	return list
}

func (w *shop) refresh() { w.c.update(w.now, testGroup, "id", w.unread()) }

func (w *shop) produce() {
	key := w.rng.IntN(8)
	for _, i := range w.active() {
		if r := w.ranges[i]; r.start <= key && key < r.end {
			r.records = append(r.records, modelRecord{key, w.written[key]})
			w.written[key]++
		}
	}
}

func (w *shop) split() {
	list := w.active()
	i := list[w.rng.IntN(len(list))]
	r := w.ranges[i]
	if r.end-r.start < 2 {
		return
	}
	r.sealed = true
	mid := (r.start + r.end) / 2
	w.ranges = append(w.ranges, &modelRange{start: r.start, end: mid, parents: []int{i}}, &modelRange{start: mid, end: r.end, parents: []int{i}})
	w.refresh()
}

func (w *shop) merge() {
	for _, i := range w.active() {
		for _, j := range w.active() {
			a, b := w.ranges[i], w.ranges[j]
			if size := a.end - a.start; a.end == b.start && b.end-b.start == size && a.start%(2*size) == 0 {
				a.sealed, b.sealed = true, true
				w.ranges = append(w.ranges, &modelRange{start: a.start, end: b.end, parents: []int{i, j}})
				w.refresh()
				return
			}
		}
	}
}

func (w *shop) join(name string) {
	p := w.members[name]
	if p == nil {
		w.born++
		p = &program{instance: w.born, at: map[uint32]int{}}
		w.members[name] = p
	}
	a, err := w.c.join(w.now, testGroup, "id", name, p.instance, w.unread())
	if err != nil {
		w.t.Fatal(err)
	}
	p.at, p.told, p.adopted = map[uint32]int{}, a, a.generation
	w.take(p)
}

// take starts reading what a program was told and does not read yet.
func (w *shop) take(p *program) {
	for _, seq := range p.told.ranges {
		if _, ok := p.at[seq]; !ok {
			p.at[seq] = w.ranges[seq].committed
			w.moved++
		}
	}
	w.alone()
}

// alone: what one program reads no other does.
func (w *shop) alone() {
	reads := map[uint32]string{}
	for name, p := range w.members {
		for seq := range p.at {
			if other := reads[seq]; other != "" {
				w.t.Fatalf("range %d is read by %s and %s", seq, name, other)
			}
			reads[seq] = name
		}
	}
}

// adopt commits what is to be let go, lets it go, and says so.
func (w *shop) adopt(name string) {
	p := w.members[name]
	lost := commitLater{name: name, generation: p.told.generation, at: map[uint32]int{}}
	for seq, at := range p.at {
		if !slices.Contains(p.told.ranges, seq) {
			lost.at[seq] = at
		}
	}
	w.commit(lost, true)
	for seq := range lost.at {
		delete(p.at, seq)
	}
	p.adopted = p.told.generation
	w.take(p)
	w.beat(name)
}

func (w *shop) beat(name string) {
	p := w.members[name]
	a, err := w.c.heartbeat(w.now, testGroup, name, p.adopted)
	if err != nil {
		w.t.Fatalf("%s, heard of in time: %v", name, err)
	}
	if p.told = a; a.generation < p.adopted {
		w.t.Fatalf("generation %d after %d", a.generation, p.adopted)
	}
}

// passSession lets a session pass in which all but one are heard of.
func (w *shop) passSession(but string) {
	for range 2 {
		w.now = w.now.Add(w.c.session / 2)
		for _, name := range slices.Sorted(maps.Keys(w.members)) {
			if name != but {
				w.beat(name)
				w.adopt(name)
			}
		}
	}
}

func (w *shop) read(name string) {
	p := w.members[name]
	for _, seq := range slices.Sorted(maps.Keys(p.at)) {
		r := w.ranges[seq]
		for range w.rng.IntN(4) {
			if p.at[seq] == len(r.records) {
				break
			}
			rec := r.records[p.at[seq]]
			p.at[seq]++
			switch {
			case rec.n > w.seen[rec.key]:
				w.t.Fatalf("key %d: record %d of range %d is handed out, %d was not", rec.key, rec.n, seq, w.seen[rec.key])
			case rec.n == w.seen[rec.key]:
				w.seen[rec.key]++
			default:
				w.again++
			}
		}
	}
}

// commit does what a server does with one.
func (w *shop) commit(c commitLater, must bool) {
	p, err := w.c.begin(w.now, testGroup, c.name, c.generation, slices.Sorted(maps.Keys(c.at)))
	if err != nil {
		if w.late++; must {
			w.t.Fatalf("%s commits %v: %v", c.name, c.at, err)
		}
		return
	}
	for seq, at := range c.at {
		w.ranges[seq].committed = max(w.ranges[seq].committed, at)
	}
	w.c.end(w.now, p)
	w.refresh()
}

func (w *shop) step() {
	names := slices.Sorted(maps.Keys(w.members))
	name := fmt.Sprint("m", w.rng.IntN(6))
	if len(names) > 0 && w.rng.IntN(4) > 0 {
		name = names[w.rng.IntN(len(names))]
	}
	p := w.members[name]
	switch w.rng.IntN(16) {
	case 0:
		w.split()
	case 1:
		w.merge()
	case 2:
		if p == nil {
			w.join(name)
		}
	case 3: // leaves in good order
		if p != nil && w.rng.IntN(3) == 0 {
			w.commit(commitLater{name, p.told.generation, p.at}, true)
			if err := w.c.leave(w.now, testGroup, name, p.told.generation); err != nil {
				w.t.Fatal(err)
			}
			delete(w.members, name)
		}
	case 4: // is killed, and is out a session later; the others are heard of
		if p != nil && w.rng.IntN(3) == 0 {
			delete(w.members, name)
			if w.rng.IntN(2) == 0 {
				w.join(name) // started again at once
				break
			}
			w.passSession("")
		}
	case 5: // falls silent for longer than a session and comes back
		if p != nil && w.rng.IntN(4) == 0 {
			p.at = map[uint32]int{}
			w.passSession(name)
			_, err := w.c.heartbeat(w.now, testGroup, name, p.adopted)
			wantCode(w.t, err, wire.CodeUnknownMember)
			w.join(name)
		}
	case 6, 7:
		if p != nil {
			w.adopt(name)
		}
	case 8:
		if p != nil {
			w.beat(name)
		}
	case 9:
		if p != nil {
			c := commitLater{name, p.told.generation, maps.Clone(p.at)}
			if w.rng.IntN(2) == 0 {
				p.delayed = append(p.delayed, c)
			} else {
				w.commit(c, true)
			}
		}
	case 10: // commits that were delayed come, in any order, perhaps again
		if p != nil && len(p.delayed) > 0 {
			w.commit(p.delayed[w.rng.IntN(len(p.delayed))], false)
		}
	case 11, 12:
		if p != nil {
			w.read(name)
		}
	default:
		w.produce()
	}
	if err := w.c.check(); err != nil {
		w.t.Fatal(err)
	}
}

// L01, L04: whatever joins, leaves, dies, splits, merges and commits late, records of a
// key are handed out in their order, parents before children, none is left out, and no
// range is read by two members at a time.
func TestL01_OrderOverSplitsMergesAndMembers(t *testing.T) {
	var moved, again, late, split int
	for seed := range uint64(400) {
		w := &shop{
			t: t, rng: rand.New(rand.NewPCG(seed, 1)), c: newCoordinator(seed<<32, 30*time.Second, 4, 10), now: time.Unix(0, 0),
			ranges: []*modelRange{{end: 8}}, members: map[string]*program{},
		}
		for range 300 {
			w.step()
		}
		for name := range w.members {
			w.beat(name)
		}
		if len(w.members) == 0 {
			w.join("last")
		}
		// Now everything is read: each round finishes ranges, so it ends.
		for round := 0; w.seen != w.written; round++ {
			if round > 100*len(w.ranges) {
				t.Fatalf("seed %d: %v of %v records of the keys were handed out; unread %v", seed, w.seen, w.written, w.unread())
			}
			for _, name := range slices.Sorted(maps.Keys(w.members)) {
				w.adopt(name)
				w.read(name)
				p := w.members[name]
				w.commit(commitLater{name, p.told.generation, p.at}, true)
			}
		}
		moved, again, late, split = moved+w.moved, again+w.again, late+w.late, split+len(w.ranges)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if moved < 1000 || again < 1000 || late < 300 || split < 1000 {
		t.Errorf("too little happened: %d ranges moved, %d records came again, %d commits were late, %d ranges", moved, again, late, split)
	}
	t.Logf("%d ranges moved, %d records came again, %d commits were late, %d ranges", moved, again, late, split)
}

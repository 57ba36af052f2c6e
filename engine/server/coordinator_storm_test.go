package server

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// storm is a group whose members come, leave, are started again and are killed. Its clock
// goes on by a second at a time, in which every member that lives says once what it has
// adopted, hears what it is to have, and reads that. How long a range stands still is
// counted in such steps.
type storm struct {
	*desk
	told  map[string]assignment // of the members that live
	still map[uint32]stretch
	moves int
	holds map[uint32][2]string // who holds a range, and whose it is to be
	dead  map[string]bool      // they were killed, and the group may not know yet
}

// stretch is how long a range has not been read, and what happened to it meanwhile.
type stretch struct {
	steps, moves int // a move is another holder, or another one who is to be
	killed       bool
}

const sessionSteps = 30

// step lets a second pass. A range that nobody reads in it has a reason of its own: it
// goes from one member to another, or its member was killed. For what happens to other
// ranges none stands still.
func (s *storm) step() {
	s.Helper()
	s.now = s.now.Add(time.Second)
	for _, name := range slices.Sorted(maps.Keys(s.told)) {
		a, err := s.heartbeat(s.now, testGroup, name, s.told[name].generation)
		if err != nil {
			s.Fatal(err)
		}
		s.told[name] = a
	}
	s.sound()
	read := map[uint32]string{}
	for name, a := range s.told {
		for _, seq := range a.ranges {
			if other, twice := read[seq]; twice {
				s.Fatalf("range %d is read by %s and %s", seq, other, name)
			}
			read[seq] = name
		}
	}
	g := s.groups[testGroup]
	if g == nil {
		return // nobody is left
	}
	for seq, r := range g.grants {
		st := s.still[seq]
		if is := [2]string{r.holder, r.owner}; s.holds[seq] != is {
			s.holds[seq] = is
			st.moves++
			s.moves++
		}
		if read[seq] != "" {
			s.still[seq] = stretch{}
			continue
		}
		st.steps++
		st.killed = st.killed || s.dead[r.holder] || s.dead[r.owner]
		s.still[seq] = st
		switch {
		case s.dead[r.holder], r.asked != 0, r.since > s.told[r.holder].generation: // it is on its way, or comes with the next step
		default:
			s.Fatalf("range %d of %s stands still for no reason: %+v", seq, r.holder, r)
		}
		most := 1 + 2*st.moves + 1
		if st.killed {
			most += sessionSteps * (st.moves + 1)
		}
		if st.steps > most {
			s.Fatalf("range %d has stood still for %d steps, in which it moved %d times: %+v", seq, st.steps, st.moves, r)
		}
	}
}

// L07: while members come and go, also such that are killed as soon as they have joined,
// or when they have been told to let go and have not, ranges go on being read but for
// those that move. The group is stable a session after the last of it, and has had no
// more generations than things happened.
func TestL07_PausesOfAStorm(t *testing.T) {
	const members, ranges = 24, 64
	letting := 0
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			s := &storm{desk: newDesk(t, ranges), told: map[string]assignment{}, still: map[uint32]stretch{}, holds: map[uint32][2]string{}, dead: map[string]bool{}}
			if s.session != sessionSteps*time.Second {
				t.Fatalf("a session is %s", s.session)
			}
			one := func() string {
				names := slices.Sorted(maps.Keys(s.told))
				if len(names) == 0 {
					return ""
				}
				return names[rng.IntN(len(names))]
			}
			kill := func(name string) {
				delete(s.told, name)
				s.dead[name] = true
			}
			events, instance := 0, uint64(1)
			for i := range 6 * members {
				events++
				name := one()
				switch what := rng.IntN(8); {
				case len(s.told) < members && rng.IntN(2) == 0 || len(s.told) < 3:
					name = fmt.Sprintf("m%03d", i)
					s.told[name] = s.enter(name)
				case what == 0: // as soon as it has joined
					name = fmt.Sprintf("m%03d", i)
					s.enter(name)
					kill(name)
				case what == 1: // told, and not adopted
					for _, r := range s.groups[testGroup].grants {
						if a, lives := s.told[r.holder]; lives && r.asked > a.generation {
							name = r.holder
							letting++
							break
						}
					}
					s.beat(name, s.told[name].generation)
					kill(name)
				case what == 2:
					kill(name)
				case what < 5:
					if err := s.leave(s.now, testGroup, name, s.told[name].generation); err != nil {
						t.Fatal(err)
					}
					delete(s.told, name)
				default: // another process takes the name
					instance++
					a, err := s.join(s.now, testGroup, "id", name, instance, s.unread)
					if err != nil {
						t.Fatal(err)
					}
					s.told[name] = a
					delete(s.dead, name)
				}
				s.sound()
				for range rng.IntN(3) {
					s.step()
				}
			}
			for range sessionSteps + 4 {
				s.step()
			}
			last := s.last
			s.step()
			s.step()
			if s.last != last {
				t.Error("it still changes a session after the last event")
			}
			if got, want := slices.Sorted(maps.Keys(s.groups[testGroup].members)), slices.Sorted(maps.Keys(s.told)); !slices.Equal(got, want) {
				t.Errorf("members %v, and those that live are %v", got, want)
			}
			for seq, st := range s.still {
				if st.steps != 0 {
					t.Errorf("range %d is not read in the end", seq)
				}
			}
			if n := int(s.last - 7<<32); n > 3*events+s.moves {
				t.Errorf("%d generations for %d events and %d moves of ranges", n, events, s.moves)
			}
		})
	}
	if letting == 0 {
		t.Error("nobody was killed between being told to let go and doing it")
	}
}

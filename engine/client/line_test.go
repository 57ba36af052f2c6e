package client

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A line is what a list of batches would be, and no batch that waits lies before unsent.
func TestLine(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var l line
	var model []*batch
	number := uint64(0)
	sent, back, removed := 0, 0, 0
	for range 20000 {
		switch at := rng.IntN(len(model) + 1); {
		case rng.IntN(3) == 0 || len(model) == 0:
			number++
			b := &batch{number: number}
			l.add(b)
			model = append(model, b)
		case at == len(model): // send the first, as hand does
			for l.unsent != nil && l.unsent.flies != nil {
				l.unsent = l.unsent.behind
			}
			if l.unsent != nil {
				l.unsent.flies = &flight{}
				sent++
			}
		case model[at].flies != nil && rng.IntN(2) == 0:
			model[at].flies = nil
			l.again(model[at])
			back++
		default:
			l.remove(model[at])
			model = slices.Delete(model, at, at+1)
			removed++
		}
		if got := slices.Collect(l.all); !slices.Equal(got, model) || l.n != len(model) {
			t.Fatalf("%d batches of %d, n is %d", len(got), len(model), l.n)
		}
		for _, b := range model {
			if b == l.unsent {
				break
			}
			if b.flies == nil {
				t.Fatalf("batch %d waits before the first that is to be sent", b.number)
			}
		}
	}
	if min(sent, back, removed) < 1000 {
		t.Errorf("%d were sent, %d came back, %d were removed: too few to tell", sent, back, removed)
	}
	for b := range l.all {
		l.remove(b) // while it is looked at
	}
	if l.first != nil || l.last != nil || l.unsent != nil || l.n != 0 {
		t.Errorf("an empty line: %+v", l)
	}
}

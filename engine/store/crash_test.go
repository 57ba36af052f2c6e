package store

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// abandon ends a store's goroutines as the death of its process does: nothing is
// answered any more.
func abandon(s *Store) {
	close(s.quit)
	s.stopPool()
	s.tasks.Wait()
	for _, sh := range s.shards {
		close(sh.quit)
		<-sh.gone
	}
}

// Whatever power cuts, kills and failed writes do: every acknowledged record is
// there once, at its offset, in order; nothing is there that was never sent; a fence
// that was answered holds; deleted segments stay away; and the second start has
// nothing to do. (A01 to A05, A07, A09, A10, C01, C04, D05, G06)
func TestPowerCuts(t *testing.T) {
	powerCuts(t, 100, false, "torn", "recycled", "fence failed", "filled", "left open", "quiet")
}

// The same where writes are late while many that began behind them are done, also large
// ones and those of foreign memory: none of these counts before the late one does.
func TestPowerCutsBehindLateWrites(t *testing.T) {
	powerCuts(t, 40, true, "late", "done behind a late one", "foreign behind a late one", "fence behind a late one", "cut behind a late one", "kill behind a late one", "fault behind a late one")
}

func powerCuts(t *testing.T, n int, late bool, wanted ...string) {
	steps := 60
	if late {
		steps = 200
	}
	seen := map[string]int{}
	var mu sync.Mutex
	for seed := range seeds(n) {
		ok := t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			mine := map[string]int{}
			w := newWorld(t, seed, late, mine)
			for round := range 3 {
				var fault *simdisk.Fault
				if w.rng.IntN(3) == 0 {
					n := 1 + w.rng.IntN(30)
					bad := []error{syscall.EIO, syscall.ENOSPC, simdisk.Short(4096)}[w.rng.IntN(3)]
					fault = w.d.Fail(simdisk.Nth(n, bad, simdisk.OnFile("topics/", simdisk.Write)))
				}
				if w.rng.IntN(2) == 0 {
					w.d.CutAfter(w.rng.IntN(60))
				}
				for range 10 + w.rng.IntN(steps) {
					switch w.rng.IntN(60) {
					case 0:
						w.fill(true)
					case 1:
						w.fill(false)
						w.s.lookAtSpace()
					case 2, 3:
						w.prove()
					}
					w.step()
					if fault != nil && fault.ErrorCount() > 0 {
						w.s.full.Store(false) // the test does not wait for the next look
					}
					if w.d.Cut() {
						break
					}
				}
				if w.d.Cut() {
					mine["cut"]++
				}
				if fault != nil {
					mine["fault"] += fault.ErrorCount()
					fault.Stop()
				}
				w.end()
				w.cutStarts()
				w.reopened(w.unsettled)
				if t.Failed() {
					t.Fatalf("in round %d", round)
				}
			}
			w.finish()
			mu.Lock()
			for k, n := range mine {
				seen[k] += n
			}
			mu.Unlock()
		})
		if !ok {
			break
		}
	}
	for _, what := range append(wanted, "cut", "cut in a start", "fault in a start", "kill", "fault", "repeat", "refused", "clean", "deleted", "birth failed", "changed", "behind a changed one", "void") {
		if seen[what] == 0 {
			t.Errorf("never seen: %s (%v)", what, seen)
		}
	}
	t.Log(seen)
}

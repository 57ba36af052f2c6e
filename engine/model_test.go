package engine

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// Random operations, one after another, against a model of what is stored and of
// what each consumer and group has still to get. L01, L03, L04, M05.
func TestAgainstModel(t *testing.T) {
	first, n := uint64(1), rounds(6)
	if s := os.Getenv("RINGFENCE_SEED"); s != "" {
		first, _ = strconv.ParseUint(s, 10, 64)
		n = 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range 150 {
				switch n := w.rng.IntN(100); {
				case n < 30:
					w.produce()
				case n < 55:
					w.read()
				case n < 65:
					w.consume()
				case n < 72:
					w.commit()
				case n < 79:
					w.split()
				case n < 85:
					w.merge()
				case n < 91:
					w.roll()
				case n < 94:
					w.expire()
				case n < 97:
					w.resend()
				default:
					w.reopen()
				}
			}
			w.finish()
		})
	}
}

package frontend

import (
	"fmt"
	"testing"
)

// The fast path allocates nothing, by name, by handle and on one range or many; nor do the calls that
// follow every answer.
func TestFastPathDoesNotAllocate(t *testing.T) {
	for _, splits := range []int{0, 4} {
		w, h, b := benchWorld(t, splits)
		d, err := w.f.PlanBatch(testTopic, b)
		if err != nil {
			t.Fatal(err)
		}
		for name, f := range map[string]func(){
			"PlanBatch":    func() { d, err = w.f.PlanBatch(testTopic, b) },
			"PlanBatchIn":  func() { d, err = w.f.PlanBatchIn(h, b) },
			"TryPlanIn":    func() { d, _ = w.f.TryPlanIn(h, b) },
			"AdoptOffsets": func() { w.f.AdoptOffsets(d.Range, d.Segment, d.Last) },
			"straddling": func() {
				if splits > 0 {
					_, err = w.f.PlanBatchIn(h, BatchInfo{MaxPos: positions - 1, Count: 1})
				}
			},
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s, %d splits: %v allocations", name, splits, n)
			}
		}
		if d.First == 0 {
			t.Error("nothing was planned")
		}
	}
}

// benchWorld has 2^splits ranges, all with a head.
func benchWorld(t tb, splits int) (*world, *Topic, BatchInfo) {
	w := newWorld(t, func(o *Options) { o.SegmentMaxBytes = 1 << 62 })
	for range splits {
		for _, id := range w.f.ActiveRangeIDs(testTopic) {
			w.split(id)
		}
	}
	w.produce(many(1 << splits)...)
	h, err := w.f.Topic(testTopic)
	if err != nil {
		t.Fatal(err)
	}
	return w, h, BatchInfo{MinPos: positions - 2, MaxPos: positions - 1, Count: 100, Bytes: 1 << 16}
}

func BenchmarkPlanBatch(b *testing.B) {
	for _, splits := range []int{0, 8} {
		w, h, batch := benchWorld(b, splits)
		ranges := 1 << splits
		b.Run(fmt.Sprintf("by=name/ranges=%d", ranges), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.f.PlanBatch(testTopic, batch); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("by=handle/ranges=%d", ranges), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.f.PlanBatchIn(h, batch); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("by=handle/ranges=%d/parallel", ranges), func(b *testing.B) {
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if _, err := w.f.PlanBatchIn(h, batch); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

func BenchmarkAdoptOffsets(b *testing.B) {
	w, h, batch := benchWorld(b, 0)
	d, err := w.f.PlanBatchIn(h, batch)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.f.AdoptOffsets(d.Range, d.Segment, d.Last)
	}
}

func BenchmarkPlan(b *testing.B) {
	for _, splits := range []int{0, 4, 8} {
		w, _, _ := benchWorld(b, splits)
		r := &reader{w: w}
		for {
			if _, ok := r.step(0, 1000); !ok {
				break
			}
		}
		b.Run(fmt.Sprintf("ranges=%d", 1<<splits), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.plan(r.at)
			}
		})
	}
}

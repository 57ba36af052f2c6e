package bench

import (
	"testing"
	"time"
)

// Every shape of the workload stores records that read back whole.
func TestAppendReadsBack(t *testing.T) {
	for name, w := range map[string]Append{
		"batches":        {RecordSize: 1024, BatchBytes: 256 << 10, InFlight: 4},
		"small records":  {RecordSize: 100, BatchBytes: 256 << 10, BatchRecords: 1000, InFlight: 8},
		"one at a time":  {RecordSize: 1024},
		"many producers": {RecordSize: 1024, Workers: 16},
		"recycled files": {RecordSize: 1024, BatchBytes: 256 << 10, InFlight: 4, SegmentBytes: 4 << 20, RetainBytes: 8 << 20},
		"rolling":        {RecordSize: 1024, Workers: 2, RollEvery: 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			w.Seconds = 0.15
			run, err := w.Start(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := run.Close(); err != nil {
					t.Error(err)
				}
			}()
			r, err := run.Measure(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if ok, why := r.Valid(); !ok {
				t.Fatal(why)
			}
			if r.Flushes == 0 || r.MBps() <= 0 || r.Sent.Latency.P50 <= 0 || r.FileBytes < uint64(r.Bytes) {
				t.Errorf("a result without substance: %+v", r)
			}
			if w.RollEvery > 0 && r.Rolls == 0 {
				t.Error("nothing was rolled")
			}
			back, err := run.ReadBack(t.Context())
			if err != nil {
				t.Error(err)
			}
			t.Log(back)
		})
	}
}

package bench

import "testing"

// The load goes through a server as it does into the engine, and is read back.
func TestAppendOverNetwork(t *testing.T) {
	for _, over := range []string{OverTCP, OverUnix} {
		for _, w := range []Append{
			{RecordSize: 1024, BatchBytes: 64 << 10, InFlight: 4, Workers: 3},
			{RecordSize: 100, InFlight: 1, Workers: 5},
		} {
			w.Over, w.IO, w.Seconds, w.SegmentBytes = over, "pool", 0.2, 8<<20
			run, err := w.Start(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			res, err := valid(run.Measure(t.Context()))
			if err != nil {
				t.Fatalf("%s: %v", w, err)
			}
			if s := run.net.server.Stats(); s.Accepted < int64(w.Workers) || s.Received < res.Bytes {
				t.Errorf("%s: the server took %d connections and %d bytes for %d of payload", w, s.Accepted, s.Received, res.Bytes)
			}
			linked, err := run.linked(t.Context(), 1)
			if err != nil {
				t.Fatal(err)
			}
			if linked.Records == 0 || run.w.Over != over || run.net == nil {
				t.Errorf("measured linked: %d records, and then %+v", linked.Records, run.w)
			}
			if _, err := run.ReadBack(t.Context()); err != nil {
				t.Error(err)
			}
			if err := run.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// The network's floors move bytes, and each row can be run.
func TestLoopbackFloors(t *testing.T) {
	for _, network := range []string{OverTCP, OverUnix} {
		if rate, err := loopbackRate(t.Context(), network, 2, 4, 64<<10, 0.1); rate <= 0 || err != nil {
			t.Errorf("%s: %g MB/s, %v", network, rate, err)
		}
		if l, rate, err := loopbackTrip(t.Context(), network, 3, 1024, 0.1); l.Count == 0 || rate <= 0 || err != nil {
			t.Errorf("%s: %d round trips, %g/s, %v", network, l.Count, rate, err)
		}
	}
	if _, err := sendfileRate(t.Context(), "tcp_test.go", 1<<20, 0.1); err == nil {
		t.Error("a file shorter than a piece was sent")
	}
	if rate, err := sendfileRate(t.Context(), "tcp_test.go", 512, 0.1); rate <= 0 || err != nil {
		t.Errorf("sendfile: %g MB/s, %v", rate, err)
	}
}

func TestTCPRows(t *testing.T) {
	ids := []string{"tcp-one", "tcp-crowd", "tcp-tail", "tcp-ranges"}
	s := Suite{Dir: t.TempDir(), IO: "pool", Network: true, Rows: ids, Runs: 1, Seconds: 0.2, SegmentBytes: 8 << 20, RetainBytes: 16 << 20, FloorBytes: 8 << 20}
	table, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range table.Outcomes {
		if o.Error != "" || o.Median.Engine <= 0 || o.Median.Floor <= 0 {
			t.Errorf("%s: %s %+v", o.ID, o.Error, o.Median)
		}
	}
	if len(table.Outcomes) != len(ids) {
		t.Errorf("%d rows", len(table.Outcomes))
	}
}

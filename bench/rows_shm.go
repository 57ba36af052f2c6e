package bench

import (
	"context"
	"errors"
	"time"
)

// SharedRows are the lines of the table of shared memory. The producer is this process,
// the server and its engine another one. What was acknowledged is read back at the end of
// each line, from both engines.
func SharedRows() []Row {
	large := Append{RecordSize: 1024, BatchBytes: 1 << 20, InFlight: 4, Ahead: 4, Workers: 1, RetainBytes: recycled}
	single := Append{RecordSize: 1024, InFlight: 1, Workers: 1, RetainBytes: recycled}
	rows := []Row{
		{ID: "shm-1m", Name: "1 KiB records, 1 MiB batches x 4, no copy", Against: "linked", Unit: "MB/s", Want: 0.95,
			run: sharedRate(large, OverTrusted)},
		{ID: "shm-1m-copy", Name: "the same, one copy", Against: "linked", Unit: "MB/s", Want: 0.9,
			run: sharedRate(large, OverShm)},
		{ID: "shm-cpu", Name: "CPU of the engine, of the first row", Against: "fio's + hash and verify of those bytes", Unit: "s/GiB", Want: 1.15, Less: true,
			run: sharedCPU(large, Shape{Durable: true, Block: 1 << 20, Depth: 4})},
		{ID: "shm-one", Name: "one 1 KiB record, one in flight: p50", Against: "linked p50 + round trip of a bare ring", Unit: "us", Want: 1.05, Less: true,
			run: sharedOne(single)},
		{ID: "shm-unix", Name: "MB for a second of CPU, both sides, one copy", Against: "the same over a Unix socket", Unit: "MB/s of CPU", Want: 1.5,
			run: sharedAgainstSocket(large)},
	}
	for _, n := range []struct {
		id   string
		size int
		want float64
	}{{"64", 64, 0.5}, {"1k", 1 << 10, 0.6}, {"64k", 64 << 10, 0.8}} {
		w := Append{RecordSize: n.size, BatchBytes: n.size + 4096, BatchRecords: 1, InFlight: 64, Workers: 1}
		rows = append(rows, Row{ID: "shm-submit-" + n.id, Name: "batches of one record of " + sizeName(int64(n.size)) + ", 64 in flight, nothing stored",
			Against: "a bare ring", Unit: "batches/s", Want: n.want, run: sharedSubmit(w)})
	}
	return rows
}

// sharedRate compares with the same work linked, in turn.
func sharedRate(w Append, over string) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.besideLinked(ctx, dir, w, over, func(linked *Run, a *apart) (Sample, error) {
			l, err := valid(linked.Measure(ctx))
			if err != nil {
				return Sample{}, err
			}
			cpu, rate, err := a.measure(ctx, s.Seconds)
			return Sample{Engine: rate, Floor: l.MBps(), Notes: map[string]float64{"engine s/GiB": cpu, "linked s/GiB": l.CPUPerGiB()}}, err
		})
	}
}

// besideLinked runs sample on a linked engine and on a process that serves another one.
func (s *Suite) besideLinked(ctx context.Context, dir string, w Append, over string, sample func(*Run, *apart) (Sample, error)) (samples []Sample, err error) {
	linked, err := s.start(ctx, dir+"-linked", w)
	if err != nil {
		return nil, err
	}
	defer removeAll(dir + "-linked")
	defer func() { err = linked.finish(ctx, err) }()
	return s.beside(ctx, Service{Dir: dir, Over: over}, w, func(a *apart) (Sample, error) { return sample(linked, a) })
}

// beside runs sample on a process that serves, Runs times.
func (s *Suite) beside(ctx context.Context, v Service, w Append, sample func(*apart) (Sample, error)) (samples []Sample, err error) {
	a, err := s.startApart(ctx, v, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = a.finish(ctx, err) }()
	for i := range s.Runs {
		one, err := sample(a)
		if err != nil {
			return samples, err
		}
		one.Ratio = one.Engine / one.Floor
		s.Say("    run %d: %s against %s", i+1, Figure(one.Engine), Figure(one.Floor))
		samples = append(samples, one)
	}
	return samples, nil
}

func sharedCPU(w Append, shape Shape) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		shape.Seconds = s.Seconds
		return s.beside(ctx, Service{Dir: dir, Over: OverTrusted}, w, func(a *apart) (Sample, error) {
			f, err := Measure(ctx, s.scratch, shape)
			if err != nil {
				return Sample{}, err
			}
			cpu, rate, err := a.measure(ctx, s.Seconds)
			return Sample{Engine: cpu, Floor: f.CPU + s.costs.Hash + s.costs.Verify, Notes: map[string]float64{"fio s/GiB": f.CPU, "MB/s": rate}}, err
		})
	}
}

func sharedOne(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
		ring, err := s.serveApart(ctx, Service{Over: OverShm, Sink: 1})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, ring.stop()) }()
		fill := w // until files are written again
		fill.BatchBytes, fill.InFlight = 1<<20, 4
		return s.besideLinked(ctx, dir, fill, OverShm, func(linked *Run, a *apart) (Sample, error) {
			_, trip, err := ringRate(ctx, ring.address, w.RecordSize+256, 1, s.Seconds/2)
			if err != nil {
				return Sample{}, err
			}
			linked.w.BatchBytes, linked.w.InFlight = 0, 1
			l, err := valid(linked.Measure(ctx))
			if err != nil {
				return Sample{}, err
			}
			_, sent, err := a.send(ctx, w, s.Seconds)
			return Sample{Engine: micros(sent.Latency.P50), Floor: micros(l.Sent.Latency.P50 + trip.P50), Notes: map[string]float64{
				"linked us": micros(l.Sent.Latency.P50), "round trip us": micros(trip.P50), "p99 us": micros(sent.Latency.P99)}}, err
		})
	}
}

// sharedAgainstSocket compares what a second of processor time moves.
func sharedAgainstSocket(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
		socket, err := s.startApart(ctx, Service{Dir: dir + "-unix", Over: OverUnix}, w)
		if err != nil {
			return nil, err
		}
		defer removeAll(dir + "-unix")
		defer func() { err = socket.finish(ctx, err) }()
		return s.beside(ctx, Service{Dir: dir, Over: OverShm}, w, func(a *apart) (Sample, error) {
			engine, rate, err := a.perCPU(ctx, s.Seconds)
			if err != nil {
				return Sample{}, err
			}
			floor, rateOver, err := socket.perCPU(ctx, s.Seconds)
			return Sample{Engine: engine, Floor: floor, Notes: map[string]float64{"MB/s": rate, "MB/s over the socket": rateOver}}, err
		})
	}
}

// perCPU is the payload in MB for each second of processor time of both processes, and
// the rate.
func (a *apart) perCPU(ctx context.Context, seconds float64) (perCPU, rate float64, err error) {
	theirs, err := a.server.cpu()
	if err != nil {
		return 0, 0, err
	}
	ours := cpuTime()
	bytes, took, err := a.load(ctx, seconds)
	if err != nil {
		return 0, 0, err
	}
	ours = cpuTime() - ours
	after, err := a.server.cpu()
	return float64(bytes) / 1e6 / (after - theirs + ours).Seconds(), float64(bytes) / 1e6 / took.Seconds(), err
}

// sharedSubmit compares submissions with those of a bare ring: of as many bytes, copied
// once on each side.
func sharedSubmit(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, _ string) (samples []Sample, err error) {
		ring, err := s.serveApart(ctx, Service{Over: OverShm, Sink: 1})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, ring.stop()) }()
		return s.beside(ctx, Service{Over: OverShm}, w, func(a *apart) (Sample, error) {
			floor, _, err := ringRate(ctx, ring.address, w.RecordSize+256, w.InFlight, s.Seconds)
			if err != nil {
				return Sample{}, err
			}
			cpu, err := a.server.cpu()
			if err != nil {
				return Sample{}, err
			}
			_, sent, err := a.send(ctx, w, s.Seconds)
			if err != nil {
				return Sample{}, err
			}
			after, err := a.server.cpu()
			n := float64(sent.Batches)
			return Sample{Engine: n / sent.Took.Seconds(), Floor: floor, Notes: map[string]float64{
				"memcpy MB/s": memcpyRate(w.RecordSize + 256), "server us/batch": float64((after-cpu)/time.Nanosecond) / 1e3 / n}}, err
		})
	}
}

// memcpyRate is how fast one core copies pieces of a size that lie in its caches.
func memcpyRate(size int) float64 {
	from, to := make([]byte, size), make([]byte, size)
	rounds := 256 << 20 / size
	start := time.Now()
	for range rounds {
		copy(to, from)
	}
	return float64(rounds*size) / 1e6 / time.Since(start).Seconds()
}

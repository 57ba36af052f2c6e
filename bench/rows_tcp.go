package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
)

// TCPRows are the lines of the network's table. Client, server and engine share one
// process and its processors with each other, as the floor's two sides do.
func TCPRows() []Row {
	large := Append{RecordSize: 1024, BatchBytes: 1 << 20, InFlight: 4, Workers: 4, RetainBytes: recycled}
	single := Append{RecordSize: 1024, InFlight: 1, Workers: 1, RetainBytes: recycled}
	crowd := single
	crowd.Workers = 1000
	many := crowd
	many.RecordSize = 200
	return []Row{
		{ID: "tcp-1m", Name: "produce 1 KiB records, 1 MiB batches, 4 connections", Against: "the lower of: linked, and raw frames over loopback", Unit: "MB/s", Want: 0.9,
			run: tcpRate(large)},
		{ID: "tcp-one", Name: "produce one record, one in flight: p50", Against: "linked p50 + loopback round trip p50", Unit: "us", Want: 1.15, Less: true,
			run: tcpOne(single)},
		{ID: "tcp-crowd", Name: "1000 connections, one record in flight each", Against: "linked, 64 goroutines", Unit: "records/s", Want: 0.8,
			run: tcpCrowd(crowd)},
		{ID: "tcp-fetch", Name: "fetch stored frames, warm, one connection", Against: "sendfile of the same file", Unit: "MB/s", Want: 0.85,
			run: tcpFetch},
		{ID: "tcp-tail", Name: "produce to consume at the tail: p50", Against: "linked flush p50 + 2 loopback round trips", Unit: "us", Want: 1.5, Less: true,
			run: tcpTail(single)},
		{ID: "tcp-mixed", Name: "the first row while a client reads what comes", Against: "the same without a reader", Unit: "MB/s", Want: 0.5,
			run: tcpMixed(large)},
		{ID: "tcp-many", Name: "1000 connections, 10000 topics, one reader that stalls", Against: "the same without that reader", Unit: "records/s", Want: 0.9,
			run: tcpMany(many)},
		{ID: "tcp-cpu", Name: "CPU of the server alone, of the first row", Against: "linked, and a process that only receives", Unit: "s/GiB", Want: 1.25, Less: true,
			run: tcpServer(large)},
		{ID: "tcp-ranges", Name: "100-byte keyed records one by one, 8 ranges", Against: "the same in batches that the server takes apart", Unit: "records/s", Want: 1,
			run: tcpRanges},
	}
}

// linked measures the workload on the same engine without the network.
func (r *Run) linked(ctx context.Context, workers int) (Result, error) {
	w, m := r.w, r.net
	r.net, r.w.Workers, r.w.Over = nil, workers, ""
	defer func() { r.net, r.w = m, w }()
	return valid(r.Measure(ctx))
}

func valid(res Result, err error) (Result, error) {
	if err != nil {
		return res, err
	}
	if ok, why := res.Valid(); !ok {
		return res, errors.New(why)
	}
	return res, nil
}

// overTCP runs sample on one engine that is served over TCP, Runs times, and reads
// everything back at the end.
func (s *Suite) overTCP(ctx context.Context, dir string, w Append, sample func(*Run) (Sample, error)) (samples []Sample, err error) {
	w.Over = OverTCP
	run, err := s.start(ctx, dir, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	for i := range s.Runs {
		one, err := sample(run)
		if err != nil {
			return samples, err
		}
		one.Ratio = one.Engine / one.Floor
		s.Say("    run %d: %s against %s", i+1, Figure(one.Engine), Figure(one.Floor))
		samples = append(samples, one)
	}
	_, err = run.ReadBack(ctx)
	return samples, err
}

func tcpRate(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.overTCP(ctx, dir, w, func(run *Run) (Sample, error) {
			raw, err := loopbackRate(ctx, "tcp", w.Workers, w.InFlight, w.BatchBytes, s.Seconds)
			if err != nil {
				return Sample{}, err
			}
			linked, err := run.linked(ctx, 1)
			if err != nil {
				return Sample{}, err
			}
			res, err := valid(run.Measure(ctx))
			if err != nil {
				return Sample{}, err
			}
			return Sample{Engine: res.MBps(), Floor: min(raw, linked.MBps()), Notes: map[string]float64{
				"linked MB/s": linked.MBps(), "loopback MB/s": raw, "s/GiB": res.CPUPerGiB(), "linked s/GiB": linked.CPUPerGiB()}}, nil
		})
	}
}

func tcpOne(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.overTCP(ctx, dir, w, func(run *Run) (Sample, error) {
			trip, linked, res, err := run.triple(ctx, s, 1)
			if err != nil {
				return Sample{}, err
			}
			return Sample{Engine: micros(res.Sent.Latency.P50), Floor: micros(linked.Sent.Latency.P50 + trip.P50), Notes: map[string]float64{
				"linked us": micros(linked.Sent.Latency.P50), "round trip us": micros(trip.P50), "p99 us": micros(res.Sent.Latency.P99)}}, nil
		})
	}
}

// triple measures a round trip, the workload linked, and over the network.
func (r *Run) triple(ctx context.Context, s *Suite, workers int) (trip Latency, linked, res Result, err error) {
	if trip, _, err = loopbackTrip(ctx, "tcp", 1, r.w.RecordSize+256, s.Seconds/2); err != nil {
		return trip, linked, res, err
	}
	if linked, err = r.linked(ctx, workers); err != nil {
		return trip, linked, res, err
	}
	res, err = valid(r.Measure(ctx))
	return trip, linked, res, err
}

func tcpCrowd(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.overTCP(ctx, dir, w, func(run *Run) (Sample, error) {
			cpu := cpuTime()
			bare, trips, err := loopbackTrip(ctx, "tcp", w.Workers, w.RecordSize+256, s.Seconds)
			if err != nil {
				return Sample{}, err
			}
			cpu = cpuTime() - cpu
			_, linked, res, err := run.triple(ctx, s, 64)
			if err != nil {
				return Sample{}, err
			}
			return Sample{Engine: res.RecordsPerS(), Floor: linked.RecordsPerS(), Notes: map[string]float64{
				// The same connections with nothing behind them: no server of one process with
				// its clients does more.
				"bare echoes/s": trips, "us CPU/echo": micros(cpu) / float64(bare.Count),
				"p50 us": micros(res.Sent.Latency.P50), "p99 us": micros(res.Sent.Latency.P99), "us CPU/record": 1e6 * res.CPU.Seconds() / float64(res.Records)}}, nil
		})
	}
}

// tcpFetch reads a GiB of stored frames over one connection.
func tcpFetch(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
	run, err := s.start(ctx, dir, Append{RecordSize: 1024, BatchBytes: 1 << 20, InFlight: 4, Workers: 1, Over: OverTCP})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	if err := run.fillOnce(ctx, 1<<30); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "log", "topics", "*", "*"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, fmt.Errorf("bench: no segment files in %s", dir))
	}
	slices.Sort(files)
	for i := range s.Runs {
		floor, err := sendfileRate(ctx, files[0], 1<<20, s.Seconds)
		if err != nil {
			return samples, err
		}
		cpu, began := cpuTime(), time.Now()
		n, err := readRemote(ctx, run.net.clients[0])
		if err != nil {
			return samples, err
		}
		took, cpu := time.Since(began), cpuTime()-cpu
		e := float64(n) / 1e6 / took.Seconds()
		s.Say("    run %d: %s against %s", i+1, Figure(e), Figure(floor))
		samples = append(samples, Sample{Engine: e, Floor: floor, Ratio: e / floor, Notes: map[string]float64{"s/GiB, both sides": cpu.Seconds() / (float64(n) / (1 << 30))}})
	}
	return samples, nil
}

// readRemote reads the topic from the start and answers the payload bytes.
func readRemote(ctx context.Context, c *client.Client) (n int64, err error) {
	in, err := c.NewConsumer(api.ConsumerOptions{Topic: topic, From: api.FromStart()})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	for ctx.Err() == nil {
		page, err := in.Fetch(1 << 16)
		if err != nil {
			return n, err
		}
		for i := range page.Records {
			n += int64(len(page.Records[i].Key) + len(page.Records[i].Value))
		}
		if page.CaughtUp {
			return n, nil
		}
	}
	return n, ctx.Err()
}

// tcpTail produces records one at a time and times each until a consumer that waits at
// the end has it.
func tcpTail(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.overTCP(ctx, dir, w, func(run *Run) (Sample, error) {
			trip, linked, _, err := run.triple(ctx, s, 1)
			if err != nil {
				return Sample{}, err
			}
			l, err := run.tail(ctx, time.Duration(s.Seconds*float64(time.Second)))
			if err != nil {
				return Sample{}, err
			}
			return Sample{Engine: micros(l.P50), Floor: micros(linked.Sent.Latency.P50 + 2*trip.P50), Notes: map[string]float64{
				"p99 us": micros(l.P99), "linked us": micros(linked.Sent.Latency.P50), "round trip us": micros(trip.P50)}}, nil
		})
	}
}

func (r *Run) tail(ctx context.Context, d time.Duration) (l Latency, err error) {
	c, err := r.net.dial(ctx)
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	in, err := c.NewConsumer(api.ConsumerOptions{Topic: topic, From: api.FromEnd()})
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	rec := NewRecorder()
	s := r.sender(r.w, 0)
	ctx, stop := context.WithCancel(ctx)
	arrived, gone := make(chan error, 1), make(chan struct{})
	defer func() {
		stop()
		<-gone
	}()
	go func() {
		defer close(gone)
		for ctx.Err() == nil {
			page, err := in.Poll(ctx, 1)
			if err == nil && len(page.Records) != 1 {
				err = fmt.Errorf("bench: a page of %d records at the tail", len(page.Records))
			}
			select {
			case arrived <- err:
			case <-ctx.Done():
			}
		}
	}()
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		from := time.Now()
		var failed error
		if err := s.sendOne(ctx, func(err error) { failed = err }); err != nil || failed != nil {
			return l, errors.Join(err, failed)
		}
		if err := <-arrived; err != nil {
			return l, err
		}
		rec.Record(time.Since(from))
	}
	return rec.Latency(), ctx.Err()
}

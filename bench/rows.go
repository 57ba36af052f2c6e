package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/ringfence/engine"
)

// recycled stands for what the suite is told to retain.
const recycled = 1

// Rows are the lines of the performance table. The first is the one that others
// are compared with.
func Rows() []Row {
	large := Append{RecordSize: 1024, BatchBytes: 1 << 20, InFlight: 4, Ahead: 4, RetainBytes: recycled}
	medium, small, fresh, single, crowd, tiny := large, large, large, large, large, large
	medium.BatchBytes = 256 << 10
	small.BatchBytes, small.InFlight, small.Ahead = 64<<10, 8, 8
	fresh.RetainBytes = 0
	single.BatchBytes, single.InFlight, single.Ahead = 0, 1, 0
	crowd.BatchBytes, crowd.InFlight, crowd.Ahead, crowd.Workers = 0, 1, 0, 64
	tiny.RecordSize, tiny.BatchBytes, tiny.BatchRecords, tiny.InFlight, tiny.Ahead = 100, 256<<10, 1000, 8, 8
	return []Row{
		{ID: "1m", Name: "1 KiB records, 1 MiB batches x 4, one range, recycled segments", Against: "fio dsync 1 MiB x 4, written file", Unit: "MB/s", Want: 0.95,
			run: throughput(large, Shape{Durable: true, Block: 1 << 20, Depth: 4})},
		{ID: "256k", Name: "the same, 256 KiB x 4", Against: "fio dsync 256 KiB x 4, written file", Unit: "MB/s", Want: 0.95,
			run: throughput(medium, Shape{Durable: true, Block: 256 << 10, Depth: 4})},
		{ID: "64k", Name: "the same, 64 KiB x 8", Against: "fio dsync 64 KiB x 8, written file", Unit: "MB/s", Want: 0.95,
			run: throughput(small, Shape{Durable: true, Block: 64 << 10, Depth: 8})},
		{ID: "fresh", Name: "1 MiB x 4 on a fresh directory", Against: "fio dsync 1 MiB x 4, growing file", Unit: "MB/s", Want: 1.0,
			run: fromFresh(fresh, Shape{Durable: true, Grow: true, Block: 1 << 20, Depth: 4})},
		{ID: "one-p50", Name: "one 1 KiB record, one in flight: p50", Against: "fio dsync 4 KiB x 1, written file: p50", Unit: "us", Want: 1.10, Less: true,
			run: latency(single, Shape{Durable: true, Block: 4 << 10, Depth: 1}, func(l Latency) time.Duration { return l.P50 })},
		{ID: "one-p99", Name: "the same: p99", Against: "the same: p99", Unit: "us", Want: 1.5, Less: true,
			run: latency(single, Shape{Durable: true, Block: 4 << 10, Depth: 1}, func(l Latency) time.Duration { return l.P99 })},
		{ID: "crowd", Name: "64 goroutines, one 1 KiB record in flight each", Against: "64 / p50 of fio dsync 64 KiB x 1", Unit: "records/s", Want: 0.9,
			run: crowdRate(crowd)},
		{ID: "small", Name: "100-byte records, batches of 1000, 8 in flight", Against: "payload rate of the first row", Unit: "MB/s", Want: 0.85,
			run: smallRecords(tiny, large)},
		{ID: "cpu", Name: "CPU per GiB of the first row", Against: "fio's + copy, hash and verify of those bytes", Unit: "s/GiB", Want: 1.25, Less: true,
			run: cpuCost(large, Shape{Durable: true, Block: 1 << 20, Depth: 4})},
		{ID: "fence", Name: "fence of an idle segment: p50", Against: "fio dsync 8 KiB x 1: p50", Unit: "us", Want: 2.5, Less: true,
			run: idleFence},
		{ID: "rolls", Name: "produce p99 while rolling every second", Against: "produce p99 without rolls", Unit: "us", Want: 2, Less: true,
			run: rolling},
		{ID: "read", Name: "read sealed segments cold, every record verified", Against: "fio direct read 1 MiB x 8", Unit: "MB/s", Want: 0.9,
			run: coldRead},
		{ID: "reopen", Name: "reopen after kill -9: 1000 sealed segments of 4 MiB, 64 open of 64 MiB", Against: "fio reading the unproven tails, + 133 ms", Unit: "ms", Want: 1.5, Less: true,
			run: reopen},
	}
}

// pairs runs the floor and the workload in turn, Runs times, on one engine that is
// in its steady state.
func (s *Suite) pairs(ctx context.Context, dir string, w Append, shape Shape, sample func(Result, Floor) Sample) (samples []Sample, err error) {
	run, err := s.start(ctx, dir, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	shape.Seconds = s.Seconds
	for i := range s.Runs {
		floor, err := Measure(ctx, s.scratch, shape)
		if err != nil {
			return samples, err
		}
		res, err := run.Measure(ctx)
		if err != nil {
			return samples, err
		}
		if ok, why := res.Valid(); !ok {
			return samples, errors.New(why)
		}
		one := sample(res, floor)
		s.Say("    run %d: %s against %s", i+1, Figure(one.Engine), Figure(one.Floor))
		samples = append(samples, one)
	}
	if _, err := run.ReadBack(ctx); err != nil {
		return samples, err
	}
	return samples, nil
}

func (s *Suite) start(ctx context.Context, dir string, w Append) (*Run, error) {
	w.IO, w.Seconds, w.SegmentBytes = s.IO, s.Seconds, s.SegmentBytes
	if w.RetainBytes == recycled {
		w.RetainBytes = s.RetainBytes
	}
	return w.Start(ctx, dir)
}

type rowFunc = func(ctx context.Context, s *Suite, dir string) ([]Sample, error)

func throughput(w Append, shape Shape) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.pairs(ctx, dir, w, shape, rateSample)
	}
}

func rateSample(r Result, f Floor) Sample {
	return Sample{Engine: r.MBps(), Floor: f.MBps, Ratio: r.MBps() / f.MBps, Notes: map[string]float64{
		"engine s/GiB": r.CPUPerGiB(), "floor s/GiB": f.CPU, "file bytes/flush": float64(r.FilePerFlush()), "engine p99 us": micros(r.Sent.Latency.P99), "floor p99 us": micros(f.Latency.P99),
	}}
}

// fromFresh makes a new engine in a new directory for every run.
func fromFresh(w Append, shape Shape) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
		one := *s
		one.Runs = 1
		for i := range s.Runs {
			data := fmt.Sprintf("%s.%d", dir, i)
			got, err := one.pairs(ctx, data, w, shape, rateSample)
			removeAll(data)
			if err != nil {
				return samples, err
			}
			samples = append(samples, got...)
		}
		return samples, nil
	}
}

func latency(w Append, shape Shape, of func(Latency) time.Duration) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.pairs(ctx, dir, w, shape, func(r Result, f Floor) Sample {
			e, fl := micros(of(r.Sent.Latency)), micros(of(f.Latency))
			return Sample{Engine: e, Floor: fl, Ratio: e / fl, Notes: map[string]float64{"engine CPU us/record": 1e6 * r.CPU.Seconds() / float64(r.Records)}}
		})
	}
}

func crowdRate(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.pairs(ctx, dir, w, Shape{Durable: true, Block: 64 << 10, Depth: 1}, func(r Result, f Floor) Sample {
			floor := 64 / f.Latency.P50.Seconds()
			return Sample{Engine: r.RecordsPerS(), Floor: floor, Ratio: r.RecordsPerS() / floor, Notes: map[string]float64{
				"p50 us": micros(r.Sent.Latency.P50), "p99 us": micros(r.Sent.Latency.P99), "file bytes/flush": float64(r.FilePerFlush())}}
		})
	}
}

// smallRecords is compared with the first row: its median when it ran in this
// suite, else a run of its own each time.
func smallRecords(tiny, large Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
		floors := s.rowOne
		if len(floors) == 0 {
			if floors, err = s.pairs(ctx, dir+".large", large, Shape{Durable: true, Block: 1 << 20, Depth: 4}, rateSample); err != nil {
				return nil, err
			}
		}
		floor := medians(floors).Engine
		return s.pairs(ctx, dir, tiny, Shape{Durable: true, Block: 128 << 10, Depth: 8}, func(r Result, f Floor) Sample {
			return Sample{Engine: r.MBps(), Floor: floor, Ratio: r.MBps() / floor, Notes: map[string]float64{
				"allocations/record": r.MallocsPerRecord(), "CPU ns/record": 1e9 * r.CPU.Seconds() / float64(r.Records), "fio dsync 128 KiB x 8 MB/s": f.MBps}}
		})
	}
}

func cpuCost(w Append, shape Shape) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) ([]Sample, error) {
		return s.pairs(ctx, dir, w, shape, func(r Result, f Floor) Sample {
			floor := f.CPU + s.costs.Sum()
			return Sample{Engine: r.CPUPerGiB(), Floor: floor, Ratio: r.CPUPerGiB() / floor, Notes: map[string]float64{"fio s/GiB": f.CPU}}
		})
	}
}

// idleFence closes segments that nothing is written to, one after another, as the floor
// writes. Where the device has been left alone as well, its first write takes longer, of
// fio as of the engine: what both need then is noted beside.
func idleFence(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
	run, err := s.start(ctx, dir, Append{RecordSize: 1024})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	for range s.Runs {
		floor, err := Measure(ctx, s.scratch, Shape{Durable: true, Block: 8 << 10, Depth: 1, Seconds: s.Seconds})
		if err != nil {
			return samples, err
		}
		idle, err := Measure(ctx, s.scratch, Shape{Durable: true, Block: 8 << 10, Depth: 1, Seconds: s.Seconds, Pause: quiet})
		if err != nil {
			return samples, err
		}
		topics, err := run.idleTopics(ctx, 100)
		if err != nil {
			return samples, err
		}
		fences, err := run.fences(ctx, topics, 0)
		if err != nil {
			return samples, err
		}
		if topics, err = run.idleTopics(ctx, 50); err != nil {
			return samples, err
		}
		asleep, err := run.fences(ctx, topics, quiet)
		if err != nil {
			return samples, err
		}
		e, f := micros(fences.P50), micros(floor.Latency.P50)
		s.Say("    run %d: %s against %s", len(samples)+1, Figure(e), Figure(f))
		samples = append(samples, Sample{Engine: e, Floor: f, Ratio: e / f, Notes: map[string]float64{
			"engine p99 us": micros(fences.P99), "floor p99 us": micros(floor.Latency.P99),
			"fio p50 us, each write after 5 ms": micros(idle.Latency.P50), "engine p50 us, each fence after 5 ms": micros(asleep.P50)}})
	}
	return samples, nil
}

// quiet is how long nothing is asked of the engine before a segment is closed.
const quiet = 5 * time.Millisecond

// idleTopics makes topics with a record each.
func (r *Run) idleTopics(ctx context.Context, n int) (topics []string, err error) {
	for range n {
		r.topics++
		name := fmt.Sprintf("fence-%d", r.topics)
		if err := r.e.CreateTopic(ctx, name, engine.TopicOptions{}); err != nil {
			return nil, err
		}
		p, err := r.e.NewProducer(engine.ProducerOptions{Topic: name})
		if err != nil {
			return nil, err
		}
		_, err = p.Produce(ctx, engine.Record{Key: []byte("fence"), Value: r.text[:1024]})
		if err = errors.Join(err, p.Close(ctx)); err != nil {
			return nil, err
		}
		topics = append(topics, name)
	}
	return topics, nil
}

// fences times the fences of topics' open segments, one by one, as the engine counts
// them: from the call to the latch on disk.
func (r *Run) fences(ctx context.Context, topics []string, pause time.Duration) (Latency, error) {
	rec := NewRecorder()
	for _, topic := range topics {
		time.Sleep(pause)
		before := r.e.Stats()
		if _, err := r.e.Roll(ctx, topic); err != nil {
			return Latency{}, err
		}
		after := r.e.Stats()
		if after.Fences != before.Fences+1 {
			return Latency{}, fmt.Errorf("bench: %d fences where there should be one", after.Fences-before.Fences)
		}
		rec.Record(after.FenceMean*time.Duration(after.Fences) - before.FenceMean*time.Duration(before.Fences))
	}
	return rec.Latency(), nil
}

// rolling compares the p99 of four producers with and without a roll every second.
func rolling(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
	w := Append{RecordSize: 1024, Workers: 4, RetainBytes: recycled}
	run, err := s.start(ctx, dir, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	run.w.Seconds = max(3*s.Seconds, 4)
	for range s.Runs {
		run.w.RollEvery = 0
		still, err := run.Measure(ctx)
		if err != nil {
			return samples, err
		}
		run.w.RollEvery = time.Second
		rolled, err := run.Measure(ctx)
		if err != nil {
			return samples, err
		}
		if rolled.Rolls == 0 {
			return samples, errors.New("bench: nothing was rolled")
		}
		e, f := micros(rolled.Sent.Latency.P99), micros(still.Sent.Latency.P99)
		s.Say("    run %d: %s against %s", len(samples)+1, Figure(e), Figure(f))
		samples = append(samples, Sample{Engine: e, Floor: f, Ratio: e / f, Notes: map[string]float64{"rolls": float64(rolled.Rolls), "worst us": micros(rolled.Sent.Latency.Max)}})
	}
	return samples, nil
}

// coldRead reads a GiB of sealed segments with a consumer. Direct writes left
// nothing of them in the page cache.
func coldRead(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
	w := Append{RecordSize: 1024, BatchBytes: 1 << 20, InFlight: 4}
	run, err := s.start(ctx, dir, w)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	if err := run.fillOnce(ctx, 1<<30); err != nil {
		return nil, err
	}
	if _, err := run.e.Roll(ctx, topic); err != nil {
		return nil, err
	}
	for range s.Runs {
		floor, err := Measure(ctx, s.scratch, Shape{Read: true, Block: 1 << 20, Depth: 8, Seconds: s.Seconds})
		if err != nil {
			return samples, err
		}
		cpu, began := cpuTime(), time.Now()
		n, err := run.readAll(ctx)
		if err != nil {
			return samples, err
		}
		took, cpu := time.Since(began), cpuTime()-cpu
		e := float64(n) / 1e6 / took.Seconds()
		s.Say("    run %d: %s against %s", len(samples)+1, Figure(e), Figure(floor.MBps))
		samples = append(samples, Sample{Engine: e, Floor: floor.MBps, Ratio: e / floor.MBps, Notes: map[string]float64{"engine s/GiB": cpu.Seconds() / (float64(n) / (1 << 30))}})
	}
	return samples, nil
}

// fillOnce stores until so many bytes were flushed.
func (r *Run) fillOnce(ctx context.Context, bytes uint64) error {
	w := r.w
	w.Workers = 1
	for r.e.Stats().Store.FlushBytes < bytes {
		load := Load{Workers: 1, InFlight: w.InFlight, Duration: 100 * time.Millisecond}
		sent, err := load.Run(ctx, func(i int) (Sender, error) { return r.sender(w, i), nil })
		if err = errors.Join(err, sent.FirstError); err != nil {
			return err
		}
	}
	return nil
}

// readAll reads the topic from the start and answers the payload bytes.
func (r *Run) readAll(ctx context.Context) (n int64, err error) {
	c, err := r.e.NewConsumer(engine.ConsumerOptions{Topic: topic, From: engine.FromStart()})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for ctx.Err() == nil {
		page, err := c.Fetch(1 << 16)
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

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

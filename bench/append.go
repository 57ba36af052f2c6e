package bench

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/segfile/record"
)

// Append is a workload that stores records in one range of an embedded engine.
type Append struct {
	IO         string // how the engine reaches the disk
	RecordSize int    // payload bytes of a record, key included; at least 32
	// BatchBytes is the size of a batch that is filled in place; 0 stores record by
	// record with blocking calls.
	BatchBytes   int
	BatchRecords int // most records of a batch; 0 is as many as fit
	InFlight     int // batches of a worker that the disk may have at once
	// Ahead is how many batches more a worker has handed to the engine, where they
	// wait for the disk to be done with one: they are ready then, as fio's
	// buffers are. They count in latency, from when they were handed over.
	// The producer's MaxInFlight is the sum of both.
	Ahead   int
	Workers int
	Codec   engine.Codec
	// Over says how the workers reach the engine: "" links it, OverTCP and OverUnix go
	// through a server in this process, each worker on a connection of its own.
	Over string

	SegmentBytes int64
	// RetainBytes bounds what the range keeps, so that files are written again and
	// the steady state is measured; 0 keeps everything, so that every file is new.
	RetainBytes int64
	RollEvery   time.Duration // close the segment this often; 0 never
	Seconds     float64
	Rate        float64 // batches a second; 0 is as fast as it goes
	AllowErrors bool    // print rates although appends failed

	Progress func(done time.Duration, batches int64)
}

const (
	keySize  = 16 // of every record: worker and sequence
	topic    = "bench"
	minValue = 16
)

func (w Append) withDefaults() (Append, error) {
	w.RecordSize = cmp.Or(w.RecordSize, 1024)
	w.InFlight, w.Workers = cmp.Or(w.InFlight, 1), cmp.Or(w.Workers, 1)
	w.SegmentBytes = cmp.Or(w.SegmentBytes, 256<<20)
	w.Seconds = cmp.Or(w.Seconds, 5)
	switch {
	case w.RecordSize < keySize+minValue:
		return w, fmt.Errorf("bench: records of %d bytes: want %d or more", w.RecordSize, keySize+minValue)
	case w.BatchBytes != 0 && w.BatchBytes < w.RecordSize+1024:
		return w, fmt.Errorf("bench: a record of %d bytes does not fit a batch of %d", w.RecordSize, w.BatchBytes)
	case w.RetainBytes < 0 || w.RetainBytes > 0 && w.RetainBytes < w.SegmentBytes:
		return w, fmt.Errorf("bench: retention of %s: want 0, or a segment of %s at least", sizeName(w.RetainBytes), sizeName(w.SegmentBytes))
	case w.InFlight < 1 || w.Ahead < 0 || w.Workers < 1 || w.Seconds <= 0:
		return w, fmt.Errorf("bench: %d workers, %d in flight and %d ahead for %g seconds", w.Workers, w.InFlight, w.Ahead, w.Seconds)
	}
	return w, nil
}

// waits says whether a worker has one record in flight and waits for it.
func (w Append) waits() bool { return w.BatchBytes == 0 && w.InFlight+w.Ahead == 1 && w.Rate == 0 }

func (w Append) String() string {
	what := fmt.Sprintf("%d-byte records one at a time", w.RecordSize)
	if w.BatchBytes > 0 {
		what = fmt.Sprintf("%d-byte records, batches of %s", w.RecordSize, sizeName(int64(w.BatchBytes)))
		if w.BatchRecords > 0 {
			what = fmt.Sprintf("%d-byte records, batches of %d", w.RecordSize, w.BatchRecords)
		}
	}
	files := "new files"
	if w.RetainBytes > 0 {
		files = "recycled files"
	}
	if w.Over != "" {
		files += fmt.Sprintf(", %d connections over %s", w.Workers, w.Over)
	}
	flight := fmt.Sprintf("%d in flight", w.InFlight*w.Workers)
	if w.Ahead > 0 {
		flight += fmt.Sprintf(" and %d ahead", w.Ahead*w.Workers)
	}
	return fmt.Sprintf("%s, %s, %s", what, flight, files)
}

// Run is an engine with the workload's topic, in its steady state.
type Run struct {
	w    Append
	e    *engine.Engine
	p    *engine.Producer
	net  *remote // nil, or how the workers reach the engine
	text []byte
	seqs []lastSeq // of each worker; owned by its goroutine

	topics int // that were made beside the workload's
}

// lastSeq is the last sequence that a worker sent, on a cache line of its own.
type lastSeq struct {
	n uint64
	_ [56]byte
}

// Start opens an engine in dir, which should be empty, and with a retention fills
// it until files are written again.
func (w Append) Start(ctx context.Context, dir string) (*Run, error) {
	w, err := w.withDefaults()
	if err != nil {
		return nil, err
	}
	o := engine.Options{IO: w.IO, SegmentBytes: w.SegmentBytes, RawWait: true}
	recycle(&o, w.RetainBytes)
	e, err := engine.Open(dir, o)
	if err != nil {
		return nil, err
	}
	r := &Run{w: w, e: e, text: w.text(), seqs: make([]lastSeq, w.Workers)}
	if err := r.begin(ctx); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if w.Over != "" {
		if r.net, err = r.serve(ctx, dir); err != nil {
			return nil, errors.Join(err, e.Close())
		}
	}
	return r, nil
}

// recycle has an engine keep so many bytes and write its files again; 0 keeps everything.
func recycle(o *engine.Options, retain int64) {
	if retain == 0 {
		return
	}
	// Retention has to keep up with the fastest device, and what it frees must stay
	// ready: a sweep may come after a second's worth of segments.
	o.Retention = engine.Policy{MaxBytes: engine.Limit(retain)}
	o.RetainEvery = 20 * time.Millisecond
	o.PoolBytes = 2*retain + 4*o.SegmentBytes
}

// outlet is what a worker stores through.
func (r *Run) outlet(worker int) outlet {
	if r.net != nil {
		return r.net.outlets[worker]
	}
	return linkedOutlet{r.p}
}

func (r *Run) producerOptions() engine.ProducerOptions {
	o := engine.ProducerOptions{Topic: topic, Codec: r.w.Codec, BatchBytes: max(r.w.BatchBytes, 256<<10)}
	switch {
	case r.w.BatchBytes > 0 && r.w.Over == "":
		o.MaxInFlight = (r.w.InFlight + r.w.Ahead) * r.w.Workers
	case r.w.BatchBytes > 0: // each worker has a producer
		o.MaxInFlight = r.w.InFlight + r.w.Ahead
	}
	return o
}

func (r *Run) begin(ctx context.Context) error {
	if err := r.e.CreateTopic(ctx, topic, engine.TopicOptions{}); err != nil {
		return err
	}
	var err error
	r.p, err = r.e.NewProducer(r.producerOptions())
	if err != nil {
		return err
	}
	if r.w.RetainBytes > 0 {
		return r.warm(ctx)
	}
	return nil
}

// WarmBytes is what Start writes, so that every file that is going to be used was written
// before.
func (w Append) WarmBytes() int64 {
	if w.RetainBytes == 0 {
		return 0
	}
	return w.RetainBytes + 4*w.SegmentBytes
}

// warm writes that.
func (r *Run) warm(ctx context.Context) error {
	target := uint64(r.w.WarmBytes())
	warm := r.w
	warm.BatchBytes, warm.BatchRecords, warm.InFlight, warm.Workers = 1<<20, 0, 4, 1
	for r.e.Stats().Store.FlushBytes < target {
		load := Load{Workers: 1, InFlight: 4, Duration: 100 * time.Millisecond}
		sent, err := load.Run(ctx, func(i int) (Sender, error) { return r.sender(warm, i), nil })
		if err = errors.Join(err, sent.FirstError); err != nil {
			return fmt.Errorf("bench: warming up: %w", err)
		}
	}
	_, err := r.e.Retain(ctx)
	return err
}

// Engine is the engine under test.
func (r *Run) Engine() *engine.Engine { return r.e }

// Close ends the engine.
func (r *Run) Close() error { return errors.Join(r.net.close(), r.e.Close()) }

// Measure runs the workload once.
func (r *Run) Measure(ctx context.Context) (Result, error) {
	load := Load{Workers: r.w.Workers, InFlight: r.w.InFlight + r.w.Ahead, Rate: r.w.Rate, Progress: r.w.Progress,
		Waits:    r.w.waits(),
		Duration: time.Duration(r.w.Seconds * float64(time.Second))}
	stopRolls := r.rolls()
	before, cpu, mallocs := r.e.Stats(), cpuTime(), mallocs()
	var records, bytes int64
	senders := make([]*sender, r.w.Workers)
	sent, err := load.Run(ctx, func(i int) (Sender, error) {
		senders[i] = r.sender(r.w, i)
		return senders[i], nil
	})
	cpu, mallocs = cpuTime()-cpu, mallocsSince(mallocs)
	after := r.e.Stats()
	rolled, rollErr := stopRolls()
	if err = errors.Join(err, rollErr); err != nil {
		return Result{}, err
	}
	for _, s := range senders {
		records += s.acked.Load()
	}
	bytes = records * int64(r.w.RecordSize)
	res := Result{
		Workload: r.w.String(), Durability: "every record on stable storage before it counts",
		IO: after.IO.Engine, HugePages: after.IO.HugePages, Registered: after.IO.Registered, Direct: after.IO.Direct,
		Sent: sent, Records: records, Bytes: bytes, Rolls: rolled,
		Flushes: after.Store.Flushes - before.Store.Flushes, FileBytes: after.Store.FlushBytes - before.Store.FlushBytes,
		Fences: after.Fences - before.Fences, CPU: cpu, Mallocs: mallocs, allowErrors: r.w.AllowErrors,
	}
	return res, nil
}

// rolls closes the topic's segments every RollEvery until the returned function is
// called, which answers how often that was.
func (r *Run) rolls() (stop func() (int64, error)) {
	if r.w.RollEvery == 0 {
		return func() (int64, error) { return 0, nil }
	}
	type outcome struct {
		n   int64
		err error
	}
	quit, out := make(chan struct{}), make(chan outcome, 1)
	go func() {
		var o outcome
		tick := time.NewTicker(r.w.RollEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n, err := r.e.Roll(context.Background(), topic)
				o.n += int64(n)
				o.err = errors.Join(o.err, err)
			case <-quit:
				out <- o
				return
			}
		}
	}()
	return func() (int64, error) {
		close(quit)
		o := <-out
		return o.n, o.err
	}
}

// sender makes and sends one worker's batches.
type sender struct {
	run    *Run
	w      Append
	worker int
	at     int           // in the text
	key    [keySize]byte // of a record that goes alone
	out    outlet
	batch  parcel // filled and not sent; nil when records go one at a time
	acked  counter
}

func (r *Run) sender(w Append, worker int) *sender {
	return &sender{run: r, w: w, worker: worker, out: r.outlet(worker), at: worker * 4096 % len(r.text)}
}

func (s *sender) Fill(ctx context.Context) error {
	if s.w.BatchBytes == 0 {
		return nil
	}
	b, err := s.out.NewBatch(ctx, s.w.BatchBytes)
	if err != nil {
		return err
	}
	for err == nil && (s.w.BatchRecords == 0 || b.Len() < s.w.BatchRecords) {
		err = s.add(b)
	}
	if err != nil && !errors.Is(err, record.ErrBatchFull) {
		b.Discard()
		return err
	}
	s.batch = b
	return nil
}

func (s *sender) Send(ctx context.Context, done func(error)) error {
	b := s.batch
	if b == nil {
		return s.sendOne(ctx, done)
	}
	s.batch = nil
	n := int64(b.Len())
	err := b.Send(ctx, func(_ engine.Placement, err error) {
		if err == nil {
			s.acked.Add(n)
		}
		done(err)
	})
	if err != nil {
		b.Discard()
	}
	return err
}

// Drop gives the filled batch back, and its records' numbers, so that the read-back
// does not take them for lost.
func (s *sender) Drop() {
	if s.batch == nil {
		return
	}
	s.run.seqs[s.worker].n -= uint64(s.batch.Len())
	s.batch.Discard()
	s.batch = nil
}

func (s *sender) sendOne(ctx context.Context, done func(error)) error {
	value := s.text(s.w.RecordSize - keySize)
	s.stamp(s.key[:])
	_, err := s.out.Produce(ctx, engine.Record{Key: s.key[:], Value: value})
	if err == nil {
		s.acked.Add(1)
	}
	done(err)
	return nil
}

// add puts the worker's next record into the batch.
func (s *sender) add(b parcel) error {
	key, value, err := b.Reserve(keySize, s.w.RecordSize-keySize)
	if err != nil {
		return err
	}
	s.stamp(key)
	copy(value, s.text(len(value)))
	return b.Commit(key)
}

// stamp writes who sent the record and as which one, which the read-back checks.
func (s *sender) stamp(key []byte) {
	seq := &s.run.seqs[s.worker].n
	*seq++
	binary.BigEndian.PutUint64(key, uint64(s.worker))
	binary.BigEndian.PutUint64(key[8:], *seq)
}

// text returns the next n bytes of text, n up to a quarter of it.
func (s *sender) text(n int) []byte {
	if n > len(s.run.text)-s.at {
		s.at = 0
	}
	t := s.run.text[s.at : s.at+n]
	s.at += n
	return t
}

// text is what records are copied from: as much as compresses like that of many records
// where it is compressed, and otherwise no more than stays in a processor's cache, as what
// a producer has just made does.
func (w Append) text() []byte {
	text := benchText()
	if w.Codec == engine.None {
		text = text[:min(len(text), max(256<<10, 4*w.RecordSize))]
	}
	return text
}

// benchText is 4 MiB that compress as log lines do.
func benchText() []byte {
	words := strings.Fields("accept bind close dial error flush get handle index join kill lock merge notify open put query read split timeout update verify write")
	text := make([]byte, 0, 4<<20)
	x := uint64(88172645463325252)
	next := func(n uint64) uint64 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		return x % n
	}
	for len(text) < 4<<20-64 {
		text = fmt.Appendf(text, "%s host=%d id=%d\n", words[next(uint64(len(words)))], next(500), next(1_000_000_000))
	}
	return text
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

func mallocsSince(before uint64) uint64 { return mallocs() - before }

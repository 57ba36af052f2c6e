package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
)

// The workers of the child that is killed. Each has a producer of a fixed id and
// sends the records 0, 1, 2, ... of its own, from the first again in every life.
const (
	loadWorkers = 6
	loadKeys    = 5
	lastWorker  = loadWorkers - 1 // writes to the topic that retention works on
)

func workerTopic(w int) string {
	if w == lastWorker {
		return "expiring"
	}
	return "kept"
}

// loadRecord is record i of a worker: its value says which, and cannot be forged.
func loadRecord(w, i int) Record {
	v := fmt.Sprintf("%d/%d/", w, i)
	v = fmt.Sprintf("%s%08x/", v, crc32.ChecksumIEEE([]byte(v)))
	r := Record{Key: text("w%d-k%d", w, i*i%loadKeys), Value: append([]byte(v), make([]byte, i*37%600)...)}
	if i%17 == 3 {
		r.Key = nil
	}
	return r
}

// parseLoad tells which record a value is; false for one that nobody made.
func parseLoad(value []byte) (w, i int, ok bool) {
	parts := strings.SplitN(string(value), "/", 4)
	if len(parts) != 4 {
		return 0, 0, false
	}
	w, err1 := strconv.Atoi(parts[0])
	i, err2 := strconv.Atoi(parts[1])
	if err1 != nil || err2 != nil || w < 0 || w >= loadWorkers {
		return 0, 0, false
	}
	return w, i, string(loadRecord(w, i).Value) == string(value)
}

func init() { parts["load"] = playLoad }

// playLoad opens the directory and works until it is killed: every way of sending,
// splits, merges, rolls and retention. It prints
//
//	up to W I       records of worker W below I may have been sent
//	ack W I R O     record I of W is stored, in range R at offset O
//	dup W I         record I of W was stored before
func playLoad(dir string) int {
	seed, _ := strconv.ParseUint(os.Getenv("RINGFENCE_ENGINE_SEED"), 10, 64)
	rng := rand.New(rand.NewPCG(seed, 1))
	io := []string{"auto", "pool"}[rng.IntN(2)]
	e, err := Open(dir, small(Options{IO: io, SegmentBytes: 1 << 20, RetainEvery: 20 * time.Millisecond, Shards: 1 + rng.IntN(2)}))
	if err != nil {
		fmt.Println("fatal", err)
		return 1
	}
	ctx := context.Background()
	fail := func(err error) {
		fmt.Println("fatal", err)
		os.Exit(1)
	}
	for _, topic := range []string{"kept", "expiring"} {
		if err := e.CreateTopic(ctx, topic, TopicOptions{}); err != nil && !errors.Is(err, ErrTopicExists) {
			fail(err)
		}
	}
	if err := errors.Join(
		e.SetPolicy(ctx, "budget", Policy{MaxBytes: Limit(2 << 20)}),
		e.BindPolicy(ctx, "expiring", "budget"),
	); err != nil {
		fail(err)
	}
	for w := range loadWorkers {
		go loadWorker(e, w, rng.Uint64(), fail)
	}
	playAdmin(e, rng, fail)
	return 0
}

func loadWorker(e *Engine, w int, seed uint64, fail func(error)) {
	rng := rand.New(rand.NewPCG(seed, 2))
	ctx := context.Background()
	o := ProducerOptions{Topic: workerTopic(w), ID: uint64(1000 + w), BatchBytes: 4<<10 + rng.IntN(64<<10), MaxInFlight: 1 + rng.IntN(5)}
	if w == 3 {
		o.Codec, o.Linger = Codec(rng.IntN(3)), time.Millisecond
	}
	p, err := e.NewProducer(o)
	if err != nil {
		fail(err)
	}
	answer := func(i int, pl Placement, err error) {
		switch {
		case err != nil:
			fail(fmt.Errorf("worker %d record %d: %w", w, i, err))
		case pl.Duplicate:
			fmt.Printf("dup %d %d\n", w, i)
		default:
			fmt.Printf("ack %d %d %d %d\n", w, i, pl.Range, pl.First)
		}
	}
	const step = 64
	for i := 0; ; {
		fmt.Printf("up to %d %d\n", w, i+step)
		for end := i + step; i < end; {
			switch w % 3 {
			case 0:
				pl, err := p.Produce(ctx, loadRecord(w, i))
				answer(i, pl, err)
				i++
			case 1:
				n := i
				if err := p.Append(ctx, loadRecord(w, n), func(pl Placement, err error) { answer(n, pl, err) }); err != nil {
					fail(err)
				}
				i++
			default:
				i = sendBatch(ctx, p, w, i, min(end, i+1+rng.IntN(40)), answer, fail)
			}
		}
	}
}

// sendBatch sends records from on in one batch, and answers for each when they lie
// side by side in one range; otherwise only that they are stored.
func sendBatch(ctx context.Context, p *Producer, w, from, to int, answer func(int, Placement, error), fail func(error)) (next int) {
	b, err := p.NewBatch(ctx, 0)
	if err != nil {
		fail(err)
	}
	for next = from; next < to; next++ {
		if err := b.Add(loadRecord(w, next)); errors.Is(err, ErrBatchFull) {
			break
		} else if err != nil {
			fail(err)
		}
	}
	n := next
	err = b.Send(ctx, func(pl Placement, err error) {
		for i := from; i < n; i++ {
			answer(i, Placement{Duplicate: true}, err) // stored; where, is not told of each
		}
	})
	if err != nil {
		fail(err)
	}
	return next
}

// playAdmin changes ranges and segments at random, for ever.
func playAdmin(e *Engine, rng *rand.Rand, fail func(error)) {
	ctx := context.Background()
	for {
		time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
		topic := []string{"kept", "expiring"}[rng.IntN(2)]
		if err := shake(ctx, e, rng, topic); err != nil {
			fail(err)
		}
	}
}

// shake does one thing to a topic's ranges or segments.
func shake(ctx context.Context, e *Engine, rng *rand.Rand, topic string) error {
	active := func() (list []RangeInfo, err error) {
		d, err := e.Describe(ctx, topic)
		for _, r := range d.AllRanges {
			if r.Active {
				list = append(list, r)
			}
		}
		return list, err
	}
	ranges, err := active()
	if err != nil {
		return err
	}
	switch n := rng.IntN(4); {
	case n == 0 && len(ranges) < 6:
		_, _, err = e.SplitRange(ctx, topic, ranges[rng.IntN(len(ranges))].Seq)
	case n == 1:
		for i := range ranges {
			for j := range i {
				a, b := ranges[j], ranges[i]
				if a.End-a.Start == b.End-b.Start && a.Start^(a.End-a.Start) == b.Start && err == nil {
					_, err = e.MergeRanges(ctx, topic, a.Seq, b.Seq)
					return err
				}
			}
		}
	case n == 2:
		_, err = e.Roll(ctx, topic)
	default:
		_, err = e.Retain(ctx)
	}
	return err
}

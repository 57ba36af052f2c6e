package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
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

// journal is what the parent knows of all lives of its child.
type journal struct {
	sent   [loadWorkers]int // records below may have been sent
	stored [loadWorkers]map[int]bool
	places [loadWorkers]map[int]Placement
}

func newJournal() *journal {
	j := &journal{}
	for w := range loadWorkers {
		j.stored[w], j.places[w] = map[int]bool{}, map[int]Placement{}
	}
	return j
}

// note takes one line of the child.
func (j *journal) note(line string) error {
	var w, i int
	var rng uint32
	var offset uint64
	if n, _ := fmt.Sscanf(line, "ack %d %d %d %d", &w, &i, &rng, &offset); n == 4 {
		j.stored[w][i], j.places[w][i] = true, Placement{Range: rng, First: offset}
	} else if n, _ := fmt.Sscanf(line, "dup %d %d", &w, &i); n == 2 {
		j.stored[w][i] = true
	} else if n, _ := fmt.Sscanf(line, "up to %d %d", &w, &i); n == 2 {
		j.sent[w] = max(j.sent[w], i)
	} else {
		return fmt.Errorf("the child said %q", line)
	}
	return nil
}

func (j *journal) acked() (n int) {
	for w := range loadWorkers {
		n += len(j.stored[w])
	}
	return n
}

// live runs one life of the child, kills it after some answers and a while, and
// notes what it said.
func (j *journal) live(t *testing.T, dir string, seed uint64, after time.Duration) {
	t.Helper()
	cmd := child(t, "load", dir, fmt.Sprint("RINGFENCE_ENGINE_SEED=", seed))
	if seed%3 == 0 { // F01: memory that the collector frees while the kernel uses it
		cmd.Env = append(cmd.Env, "GOGC=1", "GODEBUG=clobberfree=1")
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewReader(out)
	var once sync.Once
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break // a line without an end was not said
		}
		if rest, ok := strings.CutPrefix(line, "fatal "); ok {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("seed %d: the child failed: %s", seed, rest)
		}
		must(t, j.note(strings.TrimSpace(line)))
		once.Do(func() { time.AfterFunc(after, func() { cmd.Process.Kill() }) })
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("seed %d: the child was not killed: %v", seed, err)
	}
}

// check reads everything and holds it against what the child said.
func (j *journal) check(t *testing.T, e *Engine, seed uint64) {
	t.Helper()
	for _, topic := range []string{"kept", "expiring"} {
		c := newConsumer(t, e, ConsumerOptions{Topic: topic, From: FromStart()})
		got, skips := drain(t, c)
		must(t, c.Close())
		if topic == "kept" && len(skips) > 0 {
			t.Fatalf("seed %d: skips in a topic that keeps all: %v", seed, skips)
		}
		have := [loadWorkers]map[int]entry{}
		first := map[uint32]uint64{} // offset of the first record of each range
		order := map[string]int{}
		for w := range loadWorkers {
			have[w] = map[int]entry{}
		}
		for _, r := range got {
			w, i, ok := parseLoad(r.Value)
			if !ok || workerTopic(w) != topic || i >= j.sent[w] {
				t.Fatalf("seed %d: range %d offset %d holds a record that nobody sent: %.40q", seed, r.Range, r.Offset, r.Value)
			}
			if old, twice := have[w][i]; twice {
				t.Fatalf("seed %d: record %d of worker %d is there twice: range %d offset %d, range %d offset %d", seed, i, w, old.Range, old.Offset, r.Range, r.Offset)
			}
			have[w][i] = r
			if _, ok := first[r.Range]; !ok {
				first[r.Range] = r.Offset
			}
			if r.Key != nil {
				if last, ok := order[string(r.Key)]; ok && last > i {
					t.Fatalf("seed %d: key %s: record %d comes after %d", seed, r.Key, i, last)
				}
				order[string(r.Key)] = i
			}
		}
		for w := range loadWorkers {
			if workerTopic(w) != topic {
				continue
			}
			for i := range j.stored[w] {
				r, ok := have[w][i]
				pl, known := j.places[w][i]
				if !ok && topic == "expiring" {
					if start, read := first[pl.Range]; !known || !read || pl.First < start {
						continue // gone with its segment
					}
				}
				if !ok {
					t.Fatalf("seed %d: record %d of worker %d was acknowledged (%+v) and is gone: %s", seed, i, w, pl, j.around(w, i, have[w]))
				}
				if known && (pl.Range != r.Range || pl.First != r.Offset) {
					t.Fatalf("seed %d: record %d of worker %d is at range %d offset %d, acknowledged at %+v", seed, i, w, r.Range, r.Offset, pl)
				}
			}
		}
	}
}

// around describes which records of a worker near i are acknowledged (a), there (h),
// both (b) or neither (.).
func (j *journal) around(w, i int, have map[int]entry) string {
	b := text("from %d: ", max(0, i-100))
	for n := max(0, i-100); n < i+100; n++ {
		_, there := have[n]
		b = append(b, ".ahb"[btoi(j.stored[w][n])+2*btoi(there)])
	}
	return string(b)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A09: a process that is killed at any moment of a mixed load, again and again, loses
// no acknowledged record and invents none. Each record is stored once, though every
// life sends all of them again.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	j := newJournal()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("RINGFENCE_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	group := map[string]bool{}
	recovered := 0
	for range rounds(8) {
		j.live(t, dir, rng.Uint64(), time.Duration(rng.IntN(250))*time.Millisecond)
		if rng.IntN(2) == 0 {
			continue // the next life recovers
		}
		e := open(t, dir, Options{})
		o := e.Opened()
		if o.Stop != StopUnclean || len(o.Damaged) > 0 {
			t.Fatalf("seed %d: %+v", seed, o)
		}
		recovered += o.Recovered
		j.check(t, e, seed)
		c := newConsumer(t, e, ConsumerOptions{Topic: "kept", Group: "readers"})
		got, _ := drain(t, c)
		for _, v := range values(got) {
			if group[v] {
				t.Fatalf("seed %d: the group got %.40q twice", seed, v)
			}
			group[v] = true
		}
		must(t, c.Commit(within(t)))
		must(t, c.Close())
		shut(t, e)
	}
	e := open(t, dir, Options{})
	j.check(t, e, seed)
	c := newConsumer(t, e, ConsumerOptions{Topic: "kept", Group: "readers"})
	got, _ := drain(t, c)
	for _, v := range values(got) {
		group[v] = true
	}
	if all := readAll(t, e, "kept", FromStart()); len(all) != len(group) {
		t.Fatalf("seed %d: the group got %d of %d records", seed, len(group), len(all))
	}
	if j.acked() == 0 {
		t.Fatal("nothing was acknowledged: the test tests nothing")
	}
	t.Logf("seed %d: %d records acknowledged, %d segments recovered", seed, j.acked(), recovered)
}

// A process that is killed while it opens or closes a directory, new or old, leaves
// one that opens, with all that was in it.
func TestKillInOpenAndClose(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, uint64(time.Now().UnixNano())))
	killed, clean := 0, 0
	for round := range rounds(3) {
		dir := t.TempDir()
		records := 0
		for life := range 6 {
			part := "open" // and closes at once
			if life > 0 {
				part = "brief"
			}
			cmd := child(t, part, dir)
			must(t, cmd.Start())
			limit := 100
			if life == 0 {
				limit = 40
			}
			timer := time.AfterFunc(time.Duration(rng.IntN(limit))*time.Millisecond, func() { cmd.Process.Kill() })
			if err := cmd.Wait(); err != nil {
				if !strings.Contains(err.Error(), "killed") {
					t.Fatalf("round %d life %d: %v", round, life, err)
				}
				killed++
			}
			timer.Stop()
			if life%2 == 0 {
				continue // the next one finds what this one left
			}
			e := open(t, dir, Options{})
			if o := e.Opened(); len(o.Damaged)+len(o.SetAside) > 0 {
				t.Fatalf("round %d life %d: %+v", round, life, o)
			} else if o.Stop == StopClean {
				clean++
			}
			if _, err := e.Describe(within(t), "brief"); err == nil {
				got := readAll(t, e, "brief", FromStart())
				if len(got) < records {
					t.Fatalf("round %d life %d: %d records, there were %d", round, life, len(got), records)
				}
				for i, v := range got {
					if v != fmt.Sprint(i) {
						t.Fatalf("round %d life %d: record %d is %q", round, life, i, v)
					}
				}
				records = len(got)
			}
			shut(t, e)
		}
	}
	if killed == 0 {
		t.Error("no process was killed in time: the test tests nothing")
	}
	t.Logf("%d killed, %d clean", killed, clean)
}

func init() { parts["brief"] = playBrief }

// playBrief stores some numbers, under one producer, and closes.
func playBrief(dir string) int {
	e, err := Open(dir, small(Options{}))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	ctx := context.Background()
	if err := e.CreateTopic(ctx, "brief", TopicOptions{}); err != nil && !errors.Is(err, ErrTopicExists) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	p, err := e.NewProducer(ProducerOptions{Topic: "brief", ID: 9})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for i := range 50 {
		if _, err := p.Produce(ctx, Record{Key: []byte("k"), Value: fmt.Append(nil, i)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if i%10 == 5 {
			if _, err := e.Roll(ctx, "brief"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
	}
	if err := e.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

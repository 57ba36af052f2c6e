package engine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

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

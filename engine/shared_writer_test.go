package engine

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/client"
)

// writerKeys is how many keys a writer has. Record i is of key i % writerKeys.
const writerKeys = 5

// writtenKey and writtenValue make record i of a writer: who reads it can tell each byte.
func writtenKey(id, i int) []byte { return text("writer %d-%d", id, i%writerKeys) }

func writtenValue(id, i int) []byte {
	v := text("%d ", i)
	rng := rand.New(rand.NewPCG(uint64(id), uint64(i)))
	for range i * 37 % 600 / 8 {
		v = append(v, text("%08x", rng.Uint32())...)
	}
	return v
}

// playWriter sends records 0, 1, 2 and so on under an id, in bursts, until its input
// ends, and says which are stored.
func playWriter(addr string) error {
	ctx := context.Background()
	o := client.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience, MemoryBytes: 2 << 20}
	dial := client.Dial
	if rest, ok := strings.CutPrefix(addr, "shm:"); ok {
		addr, dial = rest, client.DialShm
	}
	var c *client.Client
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if c, err = dial(ctx, addr, o); err == nil || time.Now().After(end) {
			break // or the server is not there at the moment
		}
	}
	if err != nil {
		return err
	}
	id := number(idEnv)
	p, err := c.NewProducer(ProducerOptions{Topic: "t", ID: uint64(id), BatchBytes: 64 << 10})
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	for next := 0; ; time.Sleep(20 * time.Millisecond) { // long runs are not to fill the disk
		for end := next + 200; next < end; next++ {
			i := next
			err := p.Append(ctx, Record{Key: writtenKey(id, i), Value: writtenValue(id, i)}, func(_ Placement, err error) {
				if err != nil {
					fmt.Println("fatal", err)
					os.Exit(1)
				}
				fmt.Println("ack", i)
			})
			if err != nil {
				return err
			}
		}
		if err := p.Flush(ctx); err != nil {
			return err
		}
		select {
		case <-ended:
		default:
			continue
		}
		if err := p.Close(ctx); err != nil {
			return err
		}
		fmt.Println("done")
		return c.Close()
	}
}

// writers are processes that send records, one for each id at a time.
type writers struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	acked map[int][]bool // by id: which records
	acks  int
}

func newWriters(t *testing.T) *writers {
	ctx, cancel := context.WithTimeout(context.Background(), 20*patience)
	t.Cleanup(cancel)
	return &writers{t: t, ctx: ctx, acked: map[int][]bool{}}
}

func (w *writers) all() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.acks
}

func (w *writers) of(id int) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, yes := range w.acked[id] {
		if yes {
			n++
		}
	}
	return n
}

// writer is one of them.
type writer struct {
	*writers
	id    int
	cmd   *exec.Cmd
	in    io.Closer
	acks  int    // of this process
	said  string // what it said last, once ended is closed
	ended chan struct{}
}

func (w *writers) start(addr string, id int) *writer {
	w.t.Helper()
	one := &writer{writers: w, id: id, cmd: childIn(w.ctx, w.t, "shm writer", addr, fmt.Sprint(idEnv, "=", id)), ended: make(chan struct{})}
	in, err := one.cmd.StdinPipe()
	must(w.t, err)
	one.in = in
	out, err := one.cmd.StdoutPipe()
	must(w.t, err)
	must(w.t, one.cmd.Start())
	go func() {
		defer close(one.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			one.said = lines.Text()
			var i int
			if _, err := fmt.Sscanf(one.said, "ack %d", &i); err == nil {
				one.note(i)
			}
		}
		_ = one.cmd.Wait()
	}()
	return one
}

func (w *writer) note(i int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.acked[w.id]
	for len(list) <= i {
		list = append(list, false)
	}
	list[i] = true
	w.acked[w.id] = list
	w.acks++
	w.writers.acks++
}

// until waits until n more records than now are acknowledged to this process.
func (w *writer) until(n int) {
	w.t.Helper()
	count := func() int {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.acks
	}
	n += count()
	for end := time.Now().Add(patience); count() < n; time.Sleep(time.Millisecond) {
		select {
		case <-w.ended:
			w.t.Fatalf("writer %d ended and said %q", w.id, w.said)
		default:
		}
		if time.Now().After(end) {
			w.t.Fatalf("writer %d: %d records were acknowledged, want %d", w.id, count(), n)
		}
	}
}

func (w *writer) kill() {
	_ = w.cmd.Process.Kill()
	<-w.ended
}

// finish has the writer end in good order.
func (w *writer) finish() {
	w.t.Helper()
	w.in.Close()
	<-w.ended
	if w.said != "done" {
		w.t.Errorf("writer %d ended and said %q", w.id, w.said)
	}
}

// check reads the topic: the records of each writer are there from the first on, those of
// a key in order, each once and byte for byte, and none that was acknowledged is missing.
// What is no writer's goes to others, which may be nil where there is nothing else.
func (w *writers) check(e *Engine, others func(key, value []byte)) (found int, skips []Skip) {
	w.t.Helper()
	c := newConsumer(w.t, e, ConsumerOptions{Topic: "t", From: FromStart()})
	defer c.Close()
	next := map[[2]int]int{}
	for {
		page, err := c.Fetch(1000)
		must(w.t, err)
		skips = append(skips, page.Skips...)
		for i := range page.Records {
			r := &page.Records[i]
			var id, k int
			if _, err := fmt.Sscanf(string(r.Key), "writer %d-%d", &id, &k); err != nil {
				if others == nil {
					w.t.Fatalf("offset %d: key %q", r.Offset, r.Key)
				}
				others(r.Key, r.Value)
				continue
			}
			at := [2]int{id, k}
			if want := next[at]*writerKeys + k; !bytes.Equal(r.Value, writtenValue(id, want)) {
				w.t.Fatalf("offset %d, key %s: %.60q where record %d is due", r.Offset, r.Key, r.Value, want)
			}
			next[at]++
			found++
		}
		if page.CaughtUp {
			break
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, list := range w.acked {
		for i, yes := range list {
			if have := next[[2]int{id, i % writerKeys}]; yes && i/writerKeys >= have {
				w.t.Fatalf("record %d of writer %d was acknowledged and is not there: its key ends after %d", i, id, have)
			}
		}
	}
	return found, skips
}

package engine

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
)

// splitInto splits a topic of one range, number 0, into four.
func splitInto4(t testing.TB, e *Engine, topic string) {
	t.Helper()
	for seq := range uint32(3) { // 0 into 1 and 2, these into 3 to 6
		_, _, err := e.SplitRange(within(t), topic, seq)
		must(t, err)
	}
}

// routed is a load of records with and without keys, each with a number of its own. It
// checks that each acknowledged one is there once, and those of a key in order.
type routed struct {
	mu     sync.Mutex
	next   int
	acked  map[string]bool // values
	failed []error
}

// send sends n records of a writer's keys and waits for the answers.
func (l *routed) send(p *client.Producer, writer, n int) {
	var all sync.WaitGroup
	for i := range n {
		l.mu.Lock()
		l.next++
		v := fmt.Sprintf("%09d", l.next) // in the order of the keys' records too: a key has one writer
		l.mu.Unlock()
		r := Record{Value: []byte(v)}
		if i%4 != 3 {
			r.Key = text("w%d-%d", writer, i%23)
		}
		note := func(err error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if err != nil {
				l.failed = append(l.failed, err)
			} else {
				l.acked[v] = true
			}
		}
		if i%50 == 0 {
			_, err := p.Produce(context.Background(), r)
			note(err)
			continue
		}
		all.Add(1)
		if err := p.Append(context.Background(), r, func(_ Placement, err error) {
			note(err)
			all.Done()
		}); err != nil {
			all.Done()
			note(err)
			return
		}
	}
	all.Wait()
}

func (l *routed) check(t *testing.T, e *Engine, topic string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range l.failed {
		t.Errorf("a record failed: %v", err)
	}
	got, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: topic, From: FromStart()}))
	seen, last := map[string]bool{}, map[string]string{}
	for _, e := range got {
		k, v := string(e.Key), string(e.Value)
		if seen[v] {
			t.Fatalf("record %s is there twice", v)
		}
		if k != "" && v < last[k] {
			t.Fatalf("key %s: record %s comes behind %s", k, v, last[k])
		}
		seen[v], last[k] = true, v
	}
	lost := 0
	for v := range l.acked {
		if !seen[v] {
			lost++
		}
	}
	if lost > 0 || len(l.acked) == 0 {
		t.Fatalf("%d of %d acknowledged records are not there", lost, len(l.acked))
	}
}

// A client gathers by range, so that the server stores its frames as they come: before
// and after the ranges change, records without keys too.
func TestClientRoutesByRange(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	splitInto4(t, e, "t")
	s, err := server.New(e.Backend(), server.Options{Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	defer serving.Wait()
	defer func() { must(t, s.Shutdown(within(t))) }()
	c := dial(t, l.Addr().String())
	defer c.Close()
	p, err := c.NewProducer(ProducerOptions{Topic: "t", BatchBytes: 16 << 10})
	must(t, err)
	load := &routed{acked: map[string]bool{}}
	// apart is how many more frames were stored than were sent, which are the parts of
	// others.
	apart := func(n int) (more, sent int64) {
		t.Helper()
		requests, appends := s.Stats().Requests, e.Stats().Store.Appends
		load.send(p, 1, n)
		must(t, p.Flush(within(t)))
		sent = s.Stats().Requests - requests
		return int64(e.Stats().Store.Appends-appends) - sent, sent
	}
	if more, sent := apart(5000); more != 0 || sent < 20 {
		t.Errorf("%d frames were sent, %d more stored", sent, more)
	}
	_, _, err = e.SplitRange(within(t), "t", 3)
	must(t, err)
	_, err = e.MergeRanges(within(t), "t", 5, 6)
	must(t, err)
	eventually(t, "the client has learned of the new ranges", func() bool {
		more, sent := apart(1000)
		return more == 0 && sent > 4
	})
	must(t, p.Close(within(t)))
	load.check(t, e, "t")
}

// Ranges are split and merged all the time while clients send to four and more of them
// and connections are cut.
func TestClientRoutesWhileRangesChange(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 1 << 20})
	newTopic(t, e, "t")
	splitInto4(t, e, "t")
	proxy, addr := newCutter(t, serve(t, e))
	rng := rand.New(rand.NewPCG(11, uint64(time.Now().UnixNano())))
	shakes := 0
	stop := again(func() {
		if shakes++; shakes > 100 { // each costs more than the one before
			time.Sleep(time.Millisecond)
			return
		}
		if err := shake(within(t), e, rng, "t"); err != nil {
			t.Errorf("shake: %v", err)
		}
	})
	load := &routed{acked: map[string]bool{}}
	var all sync.WaitGroup
	for w := range 4 {
		c := dial(t, addr)
		o := ProducerOptions{Topic: "t", BatchBytes: 4 << 10, MaxInFlight: 1 + 2*w}
		if w == 3 {
			o.ID = 99 // and so goes one way
		}
		p, err := c.NewProducer(o)
		must(t, err)
		all.Go(func() {
			for range 10 {
				load.send(p, w, 100*rounds(3))
				proxy.cut(0.3)
			}
			if err := p.Close(within(t)); err != nil {
				t.Errorf("close: %v", err)
			}
			c.Close()
		})
	}
	all.Wait()
	stop()
	d, err := e.Describe(within(t), "t")
	must(t, err)
	if len(d.AllRanges) < 12 || proxy.cuts == 0 {
		t.Errorf("%d ranges came and %d connections were cut", len(d.AllRanges), proxy.cuts)
	}
	load.check(t, e, "t")
}

func init() { parts["serve"] = playServe }

// playServe serves the directory on a socket beside it and changes the topic's ranges
// until it is killed.
func playServe(dir string) int {
	e, err := Open(dir, small(Options{SegmentBytes: 1 << 20}))
	if err == nil {
		var s *server.Server
		if s, err = server.New(e.Backend(), server.Options{Logger: slog.New(slog.DiscardHandler)}); err == nil {
			os.Remove(dir + ".sock")
			var l net.Listener
			if l, err = net.Listen("unix", dir+".sock"); err == nil {
				go s.Serve(l)
			}
		}
	}
	if err != nil {
		fmt.Println("fatal", err)
		return 1
	}
	fmt.Println("serving")
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 3))
	for {
		if err := shake(context.Background(), e, rng, "t"); err != nil {
			fmt.Println("fatal", err)
			return 1
		}
	}
}

// The server's process is killed, again and again, while clients send to ranges that
// split and merge: what was acknowledged is there once, and in order.
func TestClientRoutesOverKills(t *testing.T) {
	dir := t.TempDir() + "/log"
	e, err := Open(dir, small(Options{SegmentBytes: 1 << 20}))
	must(t, err)
	newTopic(t, e, "t")
	splitInto4(t, e, "t")
	shut(t, e)
	live := func() (kill func()) {
		cmd := child(t, "serve", dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		said := bufio.NewScanner(out)
		if !said.Scan() || said.Text() != "serving" {
			t.Fatalf("the server says %q", said.Text())
		}
		return func() {
			_ = cmd.Process.Kill()
			for said.Scan() {
				if strings.Contains(said.Text(), "fatal") {
					t.Error(said.Text())
				}
			}
			_ = cmd.Wait()
		}
	}
	kill := live()
	defer func() { kill() }()
	load := &routed{acked: map[string]bool{}}
	var all sync.WaitGroup
	quit := make(chan struct{})
	for w := range 3 {
		c, err := client.Dial(within(t), "unix:"+dir+".sock", client.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience})
		must(t, err)
		defer c.Close()
		p, err := c.NewProducer(ProducerOptions{Topic: "t", BatchBytes: 4 << 10})
		must(t, err)
		all.Go(func() {
			for {
				select {
				case <-quit:
					if err := p.Close(within(t)); err != nil {
						t.Errorf("close: %v", err)
					}
					return
				default:
					load.send(p, w, 200)
				}
			}
		})
	}
	for range rounds(6) {
		load.mu.Lock()
		before := len(load.acked)
		load.mu.Unlock()
		eventually(t, "records are acknowledged", func() bool {
			load.mu.Lock()
			defer load.mu.Unlock()
			return len(load.acked) > before+300 || len(load.failed) > 0
		})
		kill()
		kill = live()
	}
	close(quit)
	all.Wait()
	kill()
	kill = func() { /* it is gone */ }
	e = open(t, dir, Options{})
	load.check(t, e, "t")
}

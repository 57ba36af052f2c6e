package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/spf13/cobra"
)

// What the demo's two halves agree on.
const (
	demoTopic    = "lines"
	demoGroup    = "demo"
	demoProducer = 20 // any fixed id: it is what makes the second run recognise the first
	demoSegment  = 8 << 20
)

// childEvent is what the child tells its parent, one JSON object a line. The
// parent believes only what it has read: what the child acknowledged and did not
// get to say counts as unacknowledged.
type childEvent struct {
	Acked   int64         `json:"acked"`
	Bytes   int64         `json:"bytes"`
	Seconds float64       `json:"seconds"`
	Split   string        `json:"split,omitempty"`
	Fences  fencesSummary `json:"fences"`
	Error   string        `json:"error,omitempty"`
}

// demoChildCommand ingests until it is killed. It is hidden: only demo runs it.
func (a *app) demoChildCommand() *cobra.Command {
	var file string
	var lines int64
	cmd := &cobra.Command{
		Use:    "demo-child",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			go exitWithParent(a.in)
			return a.demoChild(cmd.Context(), file, lines)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "")
	cmd.Flags().Int64Var(&lines, "lines", 0, "")
	return cmd
}

// exitWithParent ends this process when the parent's end of the pipe is gone, so
// that a killed demo leaves nobody behind.
func exitWithParent(in io.Reader) {
	_, _ = io.Copy(io.Discard, in)
	os.Exit(exitInterrupted)
}

func (a *app) demoChild(ctx context.Context, file string, lines int64) error {
	src, err := findSource(ctx, file, lines)
	if err != nil {
		return err
	}
	dir, err := a.resolveDataDir(true)
	if err != nil {
		return err
	}
	e, err := engine.Open(dir, demoOptions(a.engine))
	if err != nil {
		return err
	}
	if err := e.CreateTopic(ctx, demoTopic, engine.TopicOptions{}); err != nil {
		return errors.Join(err, e.Close())
	}
	g := &ingest{e: e, src: src, splitAt: []int64{0, 1}}
	events := json.NewEncoder(a.out)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	done := make(chan error, 1)
	go func() { done <- g.run(ctx) }()
	for {
		select {
		case err := <-done:
			g.say(events, err)
			return errors.Join(err, e.Close())
		case <-tick.C:
			g.say(events, nil)
		}
	}
}

func demoOptions(io string) engine.Options {
	return engine.Options{IO: io, SegmentBytes: demoSegment, RawWait: true}
}

// ingest stores a source's lines and splits the topic's ranges while it does.
type ingest struct {
	e   *engine.Engine
	src source
	// splitAt are the numbers of bytes, in units of 4 MiB of lines read, at which
	// the lowest active range is split under the running load.
	splitAt []int64

	start  time.Time
	acked  atomic.Int64
	dup    atomic.Int64
	bytes  atomic.Int64 // of acknowledged records that were not there before
	split  atomic.Pointer[string]
	failed atomic.Pointer[error]
	first  atomic.Int64 // when the first record that was not there before was acknowledged, ns after start
}

const splitUnit = 4 << 20

func (g *ingest) run(ctx context.Context) error {
	p, err := g.e.NewProducer(engine.ProducerOptions{Topic: demoTopic, ID: demoProducer})
	if err != nil {
		return err
	}
	g.start = time.Now()
	splits := make(chan error, len(g.splitAt))
	pending, read := 0, int64(0)
	err = g.src.each(func(_ int64, line []byte) error {
		if failed := g.failed.Load(); failed != nil {
			return *failed
		}
		read += int64(len(line)) + 1
		if pending < len(g.splitAt) && read > (g.splitAt[pending]+1)*splitUnit {
			pending++
			go func() { splits <- g.splitOne(ctx) }()
		}
		key := wordOf(line)
		size := int64(len(key) + len(line))
		return p.Append(ctx, engine.Record{Key: key, Value: line}, func(at engine.Placement, err error) { g.answer(at, size, err) })
	})
	err = errors.Join(err, p.Close(ctx))
	for range pending {
		err = errors.Join(err, <-splits)
	}
	if failed := g.failed.Load(); failed != nil && err == nil {
		err = *failed
	}
	return err
}

func (g *ingest) answer(at engine.Placement, size int64, err error) {
	if err != nil {
		g.failed.CompareAndSwap(nil, &err)
		return
	}
	if at.Duplicate {
		g.dup.Add(1)
	} else {
		g.bytes.Add(size)
		if g.first.Load() == 0 {
			g.first.CompareAndSwap(0, int64(time.Since(g.start)))
		}
	}
	g.acked.Add(1)
}

// splitOne splits the widest active range while records flow into it.
func (g *ingest) splitOne(ctx context.Context) error {
	d, err := g.e.Describe(ctx, demoTopic)
	if err != nil {
		return err
	}
	var widest engine.RangeInfo
	for _, r := range d.AllRanges {
		if r.Active && r.End-r.Start > widest.End-widest.Start {
			widest = r
		}
	}
	began := time.Now()
	left, right, err := g.e.SplitRange(ctx, demoTopic, widest.Seq)
	if err != nil {
		return fmt.Errorf("splitting range %d under load: %w", widest.Seq, err)
	}
	text := fmt.Sprintf("range %d into %d and %d in %s", widest.Seq, left, right, timeText(time.Since(began)))
	g.split.Store(&text)
	return nil
}

func (g *ingest) say(events *json.Encoder, err error) {
	ev := childEvent{Acked: g.acked.Load(), Bytes: g.bytes.Load(), Seconds: time.Since(g.start).Seconds(), Fences: fencesOf(g.e)}
	if s := g.split.Swap(nil); s != nil {
		ev.Split = *s
	}
	if err != nil {
		ev.Error = err.Error()
	}
	if err := events.Encode(ev); err != nil {
		os.Exit(exitFailed) // the parent is gone
	}
}

// fencesSummary is how many segments were closed and how long that took.
type fencesSummary struct {
	Count int64         `json:"count"`
	Mean  time.Duration `json:"mean_ns"`
	Worst time.Duration `json:"worst_ns"`
}

func timeOf(n int64) time.Duration { return time.Duration(n) }

func fencesOf(e *engine.Engine) fencesSummary {
	s := e.Stats()
	return fencesSummary{Count: s.Fences, Mean: s.FenceMean, Worst: s.FenceMax}
}

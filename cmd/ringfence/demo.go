package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ringfence/ringfence/bench"
	"github.com/ringfence/ringfence/engine"
	"github.com/spf13/cobra"
)

type demoFlags struct {
	file  string
	lines int64
	dir   string
	keep  bool
}

func (a *app) demoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Store real text, kill the engine half-way, read everything back and prove it",
		Long: `Store the lines of the Go toolchain's own sources (or of --file, or of standard
input with --file -), each under its first word as key, in a temporary directory.
The ranges are split while records flow, and segments roll. Half-way the engine's
process is killed with SIGKILL. The demo then opens the directory again, sends
everything once more under the same producer id, reads it back as a group and
compares count, order and digest with the source.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.demo(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.file, "file", "f", "", "store this file's lines; - is standard input")
	fl.Int64Var(&f.lines, "lines", 0, "store at most this many lines")
	fl.StringVar(&f.dir, "dir", "", "make the temporary directory here (default: the system's)")
	fl.BoolVar(&f.keep, "keep", false, "keep the data directory and say where it is")
	return cmd
}

// demoReport is all that the demo found out.
type demoReport struct {
	Host   bench.Host `json:"host"`
	IO     string     `json:"io"`
	Source string     `json:"source"`
	Lines  int64      `json:"records"`
	Bytes  int64      `json:"bytes"`
	// What the device gives without an engine, and what the engine makes of it with
	// large records: the lines are limited by CPU, not by the device.
	Floor bench.Floor  `json:"floor"`
	Large bench.Result `json:"large_records"`

	FirstHalf  demoIngest `json:"until_the_kill"`
	SecondHalf demoIngest `json:"after_the_kill"`
	Kill       demoKill   `json:"kill"`
	Splits     []string   `json:"splits"`
	Ranges     int        `json:"ranges"`
	Segments   int        `json:"segments"`

	ReadSeconds float64 `json:"read_seconds"`
	Digest      string  `json:"digest"`
	Proved      bool    `json:"proved"`
	Directory   string  `json:"directory,omitempty"`
}

// demoIngest is one half of the ingest.
type demoIngest struct {
	Records int64         `json:"records"` // stored in this half
	Bytes   int64         `json:"bytes"`
	Seconds float64       `json:"seconds"`
	Fences  fencesSummary `json:"fences"`
}

func (i demoIngest) mbps() float64 { return float64(i.Bytes) / 1e6 / max(i.Seconds, 1e-9) }

// demoKill is what the kill cost.
type demoKill struct {
	Acked      int64   `json:"acknowledged_before"` // as far as the parent had heard
	Stored     int64   `json:"found_after"`
	Lost       int64   `json:"lost"`
	Recovered  int     `json:"segments_recovered"`
	OpenMillis float64 `json:"open_ms"`
	Recognised int64   `json:"resent_and_recognised"`
}

func (a *app) demo(ctx context.Context, f demoFlags) (err error) {
	if err := checkIO(a.engine); err != nil {
		return err
	}
	if f.lines < 0 {
		return usageError{fmt.Errorf("--lines is %d: want 0, which is all, or more", f.lines)}
	}
	dir, err := os.MkdirTemp(f.dir, "ringfence-demo-")
	if errors.Is(err, fs.ErrNotExist) {
		return notFound{fmt.Errorf("--dir: %w", err)}
	}
	if err != nil {
		return fmt.Errorf("temporary directory: %w", err)
	}
	if !f.keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	if f.file == "-" {
		f.file = filepath.Join(dir, "stdin")
		if err := spool(a.in, f.file); err != nil {
			return err
		}
	}
	src, err := findSource(ctx, f.file, f.lines)
	if err != nil {
		return err
	}
	d := &demo{app: a, flags: f, src: src, data: filepath.Join(dir, "data")}
	d.report.Host, d.report.Source = bench.ThisHost(dir), src.name
	if f.keep {
		d.report.Directory = d.data
	}
	if err := d.run(ctx, dir); err != nil {
		return err
	}
	return a.report(d.report, func() { a.printDemo(d.report) })
}

type demo struct {
	*app
	flags  demoFlags
	src    source
	data   string
	whole  *proof // of the source
	report demoReport
}

// step says what comes next, where a person watches.
func (d *demo) step(format string, args ...any) {
	fmt.Fprintf(d.err, format+"\n", args...)
}

func (d *demo) run(ctx context.Context, dir string) error {
	d.step("1/6  reading %s", d.src.name)
	if err := d.readSource(ctx); err != nil {
		return err
	}
	d.step("2/6  measuring what this device gives, without an engine and with one")
	if err := d.measureDevice(ctx, dir); err != nil {
		return err
	}
	d.step("3/6  storing %s in a process of its own, and killing it half-way", plural(d.report.Lines, "line"))
	if err := d.ingestAndKill(ctx); err != nil {
		return err
	}
	d.step("4/6  opening the directory again and looking at what is there")
	e, err := d.reopen(ctx)
	if err != nil {
		return err
	}
	d.step("5/6  sending everything again under the same producer id")
	err = d.ingestRest(ctx, e)
	if err == nil {
		d.step("6/6  reading everything back as group %q", demoGroup)
		err = d.readBack(ctx, e)
	}
	return errors.Join(err, e.Close())
}

// readSource makes the proof that everything is compared with.
func (d *demo) readSource(ctx context.Context) error {
	d.whole = newProof()
	bar := d.progress("lines read", 0, countText[int64])
	defer bar.end()
	err := d.src.each(func(n int64, line []byte) error {
		d.whole.add(wordOf(line), line, true)
		if n%4096 == 0 {
			bar.set(n)
			return ctx.Err()
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.report.Lines, d.report.Bytes = d.whole.records, d.whole.bytes
	d.report.Digest = fmt.Sprintf("%016x", d.whole.digest())
	if d.whole.records < 1000 {
		return usageError{fmt.Errorf("%s has only %s; the demo needs 1000 to be killed in the middle of", d.src.name, plural(d.whole.records, "line"))}
	}
	return nil
}

func (d *demo) measureDevice(ctx context.Context, dir string) error {
	scratch, err := bench.NewScratch(dir, 0)
	if err != nil {
		return err
	}
	defer scratch.Close()
	d.report.Floor, err = bench.Measure(ctx, scratch, bench.Shape{Durable: true, Block: 1 << 20, Depth: 4, Seconds: 2})
	if err != nil {
		return err
	}
	large := bench.Append{IO: d.engine, RecordSize: 1024, BatchBytes: 1 << 20, InFlight: 4, RetainBytes: 256 << 20, Seconds: 2}
	run, err := large.Start(ctx, filepath.Join(dir, "large"))
	if err != nil {
		return err
	}
	d.report.Large, err = run.Measure(ctx)
	if err = errors.Join(err, run.Close()); err != nil {
		return err
	}
	if ok, why := d.report.Large.Valid(); !ok {
		return unproven{fmt.Errorf("storing large records: %s", why)}
	}
	return os.RemoveAll(filepath.Join(dir, "large"))
}

// stallTime is how long the engine may be silent before the demo gives up.
const stallTime = time.Minute

// ingestAndKill runs the child and kills it when it says that half is stored.
func (d *demo) ingestAndKill(ctx context.Context) error {
	child, out, err := d.startChild(ctx)
	if err != nil {
		return err
	}
	bar := d.progress("records stored", d.report.Lines, countText[int64])
	var last childEvent
	killed := false
	stalled := time.AfterFunc(stallTime, func() { _ = child.Process.Kill() }) // and then it did not reach the half
	defer stalled.Stop()
	events := bufio.NewScanner(out)
	for events.Scan() {
		var ev childEvent
		if json.Unmarshal(events.Bytes(), &ev) != nil {
			continue // cut off by the kill
		}
		if ev.Acked > last.Acked {
			stalled.Reset(stallTime)
		}
		last = ev
		bar.set(ev.Acked)
		if ev.Split != "" {
			d.report.Splits = append(d.report.Splits, ev.Split)
			bar.note("     split %s, under load", ev.Split)
		}
		if !killed && ev.Acked >= d.report.Lines/2 {
			killed = true
			if err := child.Process.Kill(); err != nil {
				return fmt.Errorf("killing the engine's process: %w", err)
			}
		}
	}
	bar.end()
	err = child.Wait()
	if last.Error != "" {
		return fmt.Errorf("the engine's process: %s", last.Error)
	}
	if !killed && last.Acked < d.report.Lines/2 && signaledError(err) {
		return unproven{fmt.Errorf("the engine acknowledged nothing for %s after %s", stallTime, plural(last.Acked, "record"))}
	}
	if !killed || !signaledError(err) {
		return unproven{fmt.Errorf("the engine's process ended by itself before it could be killed, so the demo proves nothing: %w", cmp.Or(err, errors.New("it was done")))}
	}
	d.report.FirstHalf = demoIngest{Records: last.Acked, Bytes: last.Bytes, Seconds: last.Seconds, Fences: last.Fences}
	d.report.Kill.Acked = last.Acked
	bar.note("     killed -9 after %s were acknowledged", plural(last.Acked, "record"))
	return events.Err()
}

func (d *demo) startChild(ctx context.Context) (*exec.Cmd, io.Reader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	child := exec.CommandContext(ctx, self, "demo-child", "--data-dir", d.data, "--io", d.engine,
		"--file", d.flags.file, "--lines", strconv.FormatInt(d.flags.lines, 10))
	child.Stderr = d.err
	if _, err := child.StdinPipe(); err != nil { // held open: its end tells the child that we are gone
		return nil, nil, err
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return child, out, child.Start()
}

// reopen recovers the directory and proves that what was acknowledged is there.
func (d *demo) reopen(ctx context.Context) (*engine.Engine, error) {
	began := time.Now()
	e, err := engine.Open(d.data, demoOptions(d.engine))
	if err != nil {
		return nil, err
	}
	k := &d.report.Kill
	k.OpenMillis = float64(time.Since(began)) / 1e6
	opened := e.Opened()
	k.Recovered, d.report.IO = opened.Recovered, opened.IO.Engine
	got := newProof()
	if err := d.read(ctx, e, engine.ConsumerOptions{Topic: demoTopic, From: engine.FromStart()}, got, k.Acked); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	k.Stored, k.Lost = got.records, max(0, k.Acked-got.records)
	err = got.beginningOf(d.whole)
	switch {
	case err != nil:
		err = unproven{fmt.Errorf("after the kill the topic holds %w", err)}
	case k.Lost > 0:
		err = unproven{fmt.Errorf("after the kill %s of %d acknowledged are missing", plural(k.Lost, "record"), k.Acked)}
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	d.step("     opened in %.0f ms, %s recovered, %s found: none lost", k.OpenMillis, plural(k.Recovered, "open segment"), plural(k.Stored, "record"))
	return e, nil
}

func (d *demo) ingestRest(ctx context.Context, e *engine.Engine) error {
	half := d.report.Bytes / 2 / splitUnit
	g := &ingest{e: e, src: d.src, splitAt: []int64{half + 1}}
	bar := d.progress("records sent", d.report.Lines, countText[int64])
	stop, watched := d.watch(ctx, g, bar)
	err := g.run(watched)
	stop()
	bar.end()
	if stuck := (unproven{}); errors.As(context.Cause(watched), &stuck) {
		return stuck
	}
	if err != nil {
		return err
	}
	if s := g.split.Load(); s != nil {
		d.report.Splits = append(d.report.Splits, *s)
		d.step("     split %s, under load", *s)
	}
	took := time.Since(g.start) - time.Duration(g.first.Load())
	d.report.Kill.Recognised = d.report.Kill.Stored
	d.report.SecondHalf = demoIngest{Records: d.report.Lines - d.report.Kill.Stored, Bytes: g.bytes.Load(), Seconds: took.Seconds(), Fences: fencesOf(e)}
	return nil
}

// watch shows an ingest's progress, and ends its context when there is none for a
// while.
func (d *demo) watch(ctx context.Context, g *ingest, bar *progress) (stop func(), watched context.Context) {
	watched, cancel := context.WithCancelCause(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		last, since := int64(0), time.Now()
		for {
			select {
			case <-tick.C:
			case <-watched.Done():
				return
			}
			n := g.acked.Load()
			bar.set(n)
			if n > last {
				last, since = n, time.Now()
			} else if time.Since(since) > stallTime {
				cancel(unproven{fmt.Errorf("the engine acknowledged nothing for %s after %s", stallTime, plural(n, "record"))})
			}
		}
	}()
	return func() { cancel(nil); <-gone }, watched
}

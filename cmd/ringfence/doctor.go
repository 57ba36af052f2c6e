package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ringfence/ringfence/bench"
	"github.com/ringfence/ringfence/ring"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/spf13/cobra"
)

func (a *app) doctorCommand() *cobra.Command {
	seconds := 1.0
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host allows, what it costs, and what to change",
		Long: `Look at everything that decides how fast and how safe the engine is here: io_uring,
direct I/O, locked memory, huge pages, the device and its cache, limits. Then
measure what a durable write costs on the data directory's file system (or that
of the current directory) and what rate to expect. The files of the measurement are
removed again; as root, 2 MiB pages are reserved while fio runs and given back.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), seconds) },
	}
	cmd.Flags().Float64Var(&seconds, "seconds", seconds, "how long each measurement takes; 0 measures nothing")
	return cmd
}

// finding is one fact that doctor reports. Advice is empty when all is well.
type finding struct {
	What   string `json:"what"`
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"`
}

type doctorReport struct {
	Host      bench.Host    `json:"host"`
	Directory string        `json:"directory"`
	Findings  []finding     `json:"findings"`
	Floors    []bench.Floor `json:"floors"`
}

func (a *app) doctor(ctx context.Context, seconds float64) error {
	if err := checkIO(a.engine); err != nil {
		return err
	}
	if !(seconds >= 0 && seconds <= maxSeconds) {
		return usageError{fmt.Errorf("--seconds is %g: want 0, which measures nothing, to %g", seconds, maxSeconds)}
	}
	dir, err := a.doctorDir()
	if err != nil {
		return err
	}
	r := doctorReport{Host: bench.ThisHost(dir), Directory: dir}
	r.Findings = append(ringFindings(ring.Probe()), hostFindings()...)
	r.Findings = append(r.Findings, dirFindings(dir)...)
	engine, err := a.diskFinding(dir)
	if err != nil {
		return err
	}
	r.Findings = append(r.Findings, engine)
	if seconds > 0 {
		if err = r.measured(a.measureFloors(ctx, dir, seconds)); err != nil && ctx.Err() != nil {
			return err
		}
	}
	// What was found without measuring is worth saying all the same.
	return errors.Join(a.report(r, func() { a.printDoctor(r) }), err)
}

// measured adds what was measured, or that there was no room for that.
func (r *doctorReport) measured(floors []bench.Floor, err error) error {
	switch {
	case errors.Is(err, bench.ErrNoRoom):
		r.Findings = append(r.Findings, finding{What: "measurement", Found: "skipped: too little is free", Advice: err.Error()})
	case err != nil:
		return err
	default:
		r.Floors = floors
		r.Findings = append(r.Findings, floorFindings(floors)...)
	}
	return nil
}

// doctorDir is the data directory if one is named, else the current directory: to
// know a place before there is data is what doctor is for.
func (a *app) doctorDir() (string, error) {
	if _, set := a.env(dataDirVar); a.dataDirGiven() || set {
		dir, err := a.resolveDataDir(false)
		if errors.As(err, new(notFound)) {
			return "", notFound{fmt.Errorf("%w, and so does mkdir", err)}
		}
		return dir, err
	}
	return os.Getwd()
}

func (a *app) printDoctor(r doctorReport) {
	a.printf("%s\n%s\n\n", r.Host, r.Directory)
	rows := [][]string{}
	for _, f := range r.Findings {
		mark := "ok"
		if f.Advice != "" {
			mark = "!!"
		}
		rows = append(rows, []string{mark, f.What, f.Found})
	}
	a.table(rows...)
	if len(r.Floors) > 0 {
		a.printf("\nWhat the device gives without an engine (%s, buffers on %s):\n", r.Floors[0].Tool, r.Floors[0].Pages)
		rows := [][]string{{"", "MB/s", "writes/s", "p50", "p99"}}
		for _, f := range r.Floors {
			rows = append(rows, []string{"  " + f.Shape, fmt.Sprintf("%.1f", f.MBps), fmt.Sprintf("%.0f", f.OpsPerS), timeText(f.Latency.P50), timeText(f.Latency.P99)})
		}
		a.table(rows...)
	}
	var advice []string
	for _, f := range r.Findings {
		if f.Advice != "" {
			advice = append(advice, fmt.Sprintf("  - %s: %s", f.What, f.Advice))
		}
	}
	if len(advice) == 0 {
		a.printf("\nNothing to change.\n")
		return
	}
	a.printf("\nTo change:\n%s\n", strings.Join(advice, "\n"))
}

// diskFinding opens the engine's own way to the disk in a scratch directory and
// says what it chose.
func (a *app) diskFinding(dir string) (f finding, err error) {
	scratch, err := os.MkdirTemp(dir, "doctor-")
	if err != nil {
		return f, fmt.Errorf("doctor needs to write in %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	d, err := disk.Open(filepath.Join(scratch, "log"), disk.Options{Engine: a.engine, ArenaBytes: 8 << 20})
	if err != nil {
		return f, fmt.Errorf("opening the disk: %w", err)
	}
	info := d.Info()
	if err := d.Close(); err != nil {
		return f, fmt.Errorf("closing the disk: %w", err)
	}
	return engineFinding(info, a.engine), nil
}

// engineFinding is about what the engine chose, where wanted is what it was asked for.
func engineFinding(info disk.Info, wanted string) finding {
	f := finding{What: "the engine uses", Found: info.Engine}
	if info.Reason != "" {
		f.Found += ": " + info.Reason
	}
	switch {
	case !info.Direct:
		f.Found += "; buffered I/O with syncs"
		f.Advice = "the file system refuses direct I/O; use ext4 or xfs on a real device for full speed"
	case info.Engine == "pool" && wanted != "pool":
		f.Advice = "allow io_uring (see above); the pool is slower, with the same guarantees"
	case info.Reason != "" && !info.Registered && wanted != "pool":
		f.Advice = "let this user lock more memory, so that the kernel knows the buffers: set LimitMEMLOCK=infinity, ulimit -l unlimited, or docker run --ulimit memlock=-1"
	}
	if !info.HugePages {
		f.Found += "; buffers on 4 KiB pages"
	} else {
		f.Found += "; buffers on 2 MiB pages"
	}
	if info.Registered {
		f.Found += ", registered with the kernel"
	}
	return f
}

// measureFloors measures the shapes that decide latency and rate.
func (a *app) measureFloors(ctx context.Context, dir string, seconds float64) (floors []bench.Floor, err error) {
	shapes := []bench.Shape{
		{Durable: true, Block: 4 << 10, Depth: 1, Seconds: seconds},
		{Durable: true, Block: 64 << 10, Depth: 4, Seconds: seconds},
		{Durable: true, Block: 1 << 20, Depth: 4, Seconds: seconds},
		{Durable: true, Grow: true, Block: 1 << 20, Depth: 4, Seconds: seconds},
		{Read: true, Block: 1 << 20, Depth: 8, Seconds: seconds},
	}
	scratch, err := bench.NewScratch(dir, 0)
	if err != nil {
		return nil, err
	}
	defer scratch.Close()
	bar := a.progress("doctor: measuring", int64(len(shapes)), func(n int64) string { return fmt.Sprint(n) })
	bar.every = min(bar.every, time.Second)
	defer bar.end()
	for i, s := range shapes {
		f, err := bench.Measure(ctx, scratch, s)
		if err != nil {
			return nil, err
		}
		floors = append(floors, f)
		bar.set(int64(i + 1))
	}
	return floors, nil
}

// floorFindings reads the measurements: the cost of a flush and what recycling is worth.
func floorFindings(floors []bench.Floor) (fs []finding) {
	small, written, grown := floors[0], floors[2], floors[3]
	f := finding{What: "a durable 4 KiB write", Found: fmt.Sprintf("%s at the median, one in a hundred takes %s", timeText(small.Latency.P50), timeText(small.Latency.P99))}
	switch {
	case small.Latency.P50 > 5*time.Millisecond:
		f.Advice = "this device flushes slowly (a hard disk, or a network volume): send larger batches, or many at once, and share its flushes"
	case small.Latency.P50 < 20*time.Microsecond:
		f.Advice = "that is faster than flash memory: make sure that this device really keeps what it confirms when the power goes"
	}
	fs = append(fs, f, finding{What: "expected rate", Found: fmt.Sprintf("up to %.0f MB/s durable in large batches, %.0f small batches a second one at a time", written.MBps, small.OpsPerS)})
	gain := written.MBps / max(grown.MBps, 1e-9)
	return append(fs, finding{What: "recycled segments", Found: fmt.Sprintf("%.1f times the rate of new ones: overwriting written blocks against growing a file", gain)})
}

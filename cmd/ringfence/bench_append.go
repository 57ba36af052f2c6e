package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/bench"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/segfile/record"
	"github.com/spf13/cobra"
)

type benchFlags struct {
	record, batch, segment, retain sizeFlag
	floorSize                      sizeFlag
	records, inFlight, workers     int
	ahead                          int
	compress                       string
	seconds, rate                  float64
	rollEvery                      time.Duration
	floor, suite, markdown         bool
	runs                           int
	rows                           []string
	dir                            string
	allowErrors                    bool

	over   string // "" or how the network is reached
	unix   bool
	shared bool // the suite is that of shared memory
}

func (f benchFlags) rowIDs() []string {
	if f.shared {
		return bench.RowIDs(bench.SharedRows())
	}
	if f.over != "" {
		return bench.RowIDs(bench.TCPRows())
	}
	return bench.RowIDs(bench.Rows())
}

func (a *app) benchAppendCommand() *cobra.Command {
	f := benchFlags{record: 1024, batch: 1 << 20, segment: 256 << 20, retain: 512 << 20, inFlight: 4, workers: 1, compress: "none"}
	cmd := &cobra.Command{
		Use:   "append",
		Short: "Measure appends",
		Long: `Store records in one range of an engine of its own, in a temporary directory below
--dir, and report rate, latency, flushes and CPU. The records are read back and
checked afterwards. In flight is what the disk may have of the producer at once; as
many batches again wait in the engine, filled, unless --ahead says otherwise. The
producer's MaxInFlight is both. A batch's latency counts from when it was handed over.

With a retention (the default) segment files are written again and again, so the
steady state is measured; --retain 0 measures a directory that only grows. With
--rate latency counts from when a batch was due, and a run that does not reach the
rate is no result. --floor runs fio with the same shape beside it (a plain loop
where fio is missing) and prints the ratio. --suite runs the performance table:
every row several times, floor and engine in turn, and the medians.`,
		Example: `  ringfence bench append --floor
  ringfence bench append --record 100 --batch 256KiB --records 1000 --in-flight 8
  ringfence bench append --batch 0 --workers 64 --seconds 10
  ringfence bench append --suite --rows 1m,one-p50 --runs 9`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("ahead") {
				f.ahead = f.inFlight
			}
			return a.benchRun(cmd, f)
		},
	}
	a.benchFlags(cmd, &f)
	cmd.Flags().IntVar(&f.ahead, "ahead", f.inFlight, "batches each worker has waiting behind those in flight")
	cmd.Flags().Lookup("ahead").DefValue = "as many as in flight"
	return cmd
}

// benchTCPCommand is the same load through a server.
func (a *app) benchTCPCommand() *cobra.Command {
	f := benchFlags{record: 1024, batch: 1 << 20, segment: 256 << 20, retain: 512 << 20, inFlight: 4, workers: 4, compress: "none", over: bench.OverTCP}
	cmd := &cobra.Command{
		Use:   "tcp",
		Short: "Measure appends, fetches and the tail over the network",
		Long: `Store records through a server on loopback, or with --unix on a Unix socket, each
worker on a connection of its own. Server, clients and engine share this process and
the machine's processors. What was acknowledged is durable, and is read back and
checked afterwards.

--floor measures the device as 'bench append' does. --suite runs the network's
performance table: produce, one record at a time, many connections, fetch, and the
tail, each beside the same work linked and the same bytes over a bare socket; the
server's processor time, in a process of its own; several ranges, with and without
gathering by range; producing beside a reader; and 1000 connections with 10000
topics, with and without a reader that stalls. With --rate the load is an open loop:
latency counts from when a batch was due.`,
		Example: `  ringfence bench tcp --workers 8 --batch 256KiB
  ringfence bench tcp --batch 0 --workers 1000 --unix
  ringfence bench tcp --suite`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.unix {
				f.over = bench.OverUnix
			}
			return a.benchRun(cmd, f)
		},
	}
	a.benchFlags(cmd, &f)
	cmd.Flags().BoolVar(&f.unix, "unix", false, "over a Unix socket instead of TCP")
	return cmd
}

// benchShmCommand is the table of shared memory.
func (a *app) benchShmCommand() *cobra.Command {
	f := benchFlags{record: 1024, batch: 1 << 20, segment: 64 << 20, retain: 256 << 20, inFlight: 4, workers: 1, compress: "none", suite: true, shared: true}
	cmd := &cobra.Command{
		Use:   "shm",
		Short: "Measure producers that share memory with the server",
		Long: `Run the performance table of shared memory: every row several times, floor and
workload in turn, and the medians. This process produces; the server and its engine
are a process of their own, in a temporary directory below --dir. Beside each row
stand the same work linked, over a Unix socket, or a bare ring between two
processes.`,
		Example: `  ringfence bench shm
  ringfence bench shm --rows shm-1m,shm-one --runs 9`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchRun(cmd, f) },
	}
	fl := cmd.Flags()
	fl.Var(&f.segment, "segment", "size at which segments roll")
	fl.Var(&f.retain, "retain", "what the range keeps, so that files are recycled")
	fl.Float64Var(&f.seconds, "seconds", 0, "how long to measure (default 2)")
	fl.Var(&f.floorSize, "floor-size", "size of the file the floor runs on (default 1GiB)")
	fl.BoolVar(&f.markdown, "markdown", false, "print the table as Markdown")
	fl.IntVar(&f.runs, "runs", 5, "runs of each row")
	fl.StringSliceVar(&f.rows, "rows", nil, "rows of the table: "+strings.Join(f.rowIDs(), ", "))
	fl.StringVar(&f.dir, "dir", "", "where to make the temporary directory (default: --data-dir's file system, else the current directory's)")
	return cmd
}

func (a *app) benchRun(cmd *cobra.Command, f benchFlags) error {
	if err := checkIO(a.engine); err != nil {
		return err
	}
	if err := f.check(cmd.Flags().Changed); err != nil {
		return usageError{err}
	}
	if f.suite {
		return a.benchSuite(cmd.Context(), f)
	}
	return a.benchAppend(cmd.Context(), f)
}

func (a *app) benchFlags(cmd *cobra.Command, f *benchFlags) {
	fl := cmd.Flags()
	fl.Var(&f.record, "record", "payload bytes of a record, key included")
	fl.Var(&f.batch, "batch", "bytes of a batch that is filled in place; 0 stores record by record")
	fl.IntVar(&f.records, "records", 0, "most records of a batch; 0 is as many as fit")
	fl.IntVar(&f.inFlight, "in-flight", f.inFlight, "batches each worker has in flight (1 without batches)")
	fl.IntVar(&f.workers, "workers", f.workers, "goroutines that store")
	fl.Var(&f.segment, "segment", "size at which segments roll")
	fl.Var(&f.retain, "retain", "what the range keeps, so that files are recycled; 0 keeps everything")
	fl.StringVar(&f.compress, "compress", f.compress, "none, s2 or zstd")
	fl.Float64Var(&f.seconds, "seconds", 0, "how long to measure (default 5; 2 for each run of the suite)")
	fl.Float64Var(&f.rate, "rate", 0, "batches a second; 0 is as fast as it goes")
	fl.DurationVar(&f.rollEvery, "roll-every", 0, "close the segment this often")
	fl.BoolVar(&f.floor, "floor", false, "measure the device without an engine beside it")
	fl.Var(&f.floorSize, "floor-size", "size of the file the floor runs on (default 1GiB)")
	fl.BoolVar(&f.suite, "suite", false, "run the whole performance table")
	fl.BoolVar(&f.markdown, "markdown", false, "print the suite's table as Markdown")
	fl.IntVar(&f.runs, "runs", 5, "runs of each row of the suite")
	fl.StringSliceVar(&f.rows, "rows", nil, "rows of the suite: "+strings.Join(f.rowIDs(), ", "))
	fl.StringVar(&f.dir, "dir", "", "where to make the temporary directory (default: --data-dir's file system, else the current directory's)")
	fl.BoolVar(&f.allowErrors, "allow-errors", false, "print rates although appends failed")
}

// smallestFloor is the smallest file that the floor runs on: one of the largest batches.
const smallestFloor = engine.MaxBatchBytes

// maxSeconds is the longest measurement, a day.
const maxSeconds = 86400.0

// check refuses what cannot be measured, before anything is written.
func (f benchFlags) check(given func(string) bool) error {
	if !f.suite {
		for _, flag := range []string{"rows", "markdown", "runs"} {
			if given(flag) {
				return fmt.Errorf("--%s goes with --suite", flag)
			}
		}
	}
	for _, row := range f.rows {
		if !slices.Contains(f.rowIDs(), row) {
			return fmt.Errorf("--rows: there is no row %q; there are %s", row, strings.Join(f.rowIDs(), ", "))
		}
	}
	switch {
	case given("seconds") && !(f.seconds > 0 && f.seconds <= maxSeconds):
		return fmt.Errorf("--seconds is %g: want more than 0, and %g at most", f.seconds, maxSeconds)
	case f.workers < 1:
		return fmt.Errorf("--workers is %d: want 1 or more", f.workers)
	case f.inFlight < 1:
		return fmt.Errorf("--in-flight is %d: want 1 or more", f.inFlight)
	case f.ahead < 0:
		return fmt.Errorf("--ahead is %d: want 0 or more", f.ahead)
	case f.runs < 1:
		return fmt.Errorf("--runs is %d: want 1 or more", f.runs)
	case f.records < 0 || !(f.rate >= 0) || f.rollEvery < 0:
		return errors.New("--records, --rate and --roll-every may not be negative")
	case f.record < 32:
		return fmt.Errorf("--record is %d bytes: want 32 or more", f.record)
	case f.batch > engine.MaxBatchBytes || f.batch != 0 && f.batch < f.record+1024:
		return fmt.Errorf("--batch is %d bytes: want 0, or --record and 1024 more, to %s", f.batch, bytesText(engine.MaxBatchBytes))
	case f.segment < engine.MinSegmentBytes || f.segment > maxSize:
		return fmt.Errorf("--segment is %d bytes: want %s to %s", f.segment, bytesText(engine.MinSegmentBytes), bytesText(sizeFlag(maxSize)))
	case given("floor-size") && (f.floorSize < smallestFloor || f.floorSize > maxSize):
		return fmt.Errorf("--floor-size is %d bytes: want %s to %s", f.floorSize, bytesText(sizeFlag(smallestFloor)), bytesText(sizeFlag(maxSize)))
	case f.retain != 0 && f.retain < f.segment:
		return fmt.Errorf("--retain is %s: want 0, or --segment (%s) at least", bytesText(f.retain), bytesText(f.segment))
	}
	return nil
}

// benchDir is where a benchmark works. It is never the system's temporary
// directory by default: that is often memory.
func (a *app) benchDir(f benchFlags) (string, error) {
	if f.dir != "" {
		if _, err := os.Stat(f.dir); errors.Is(err, fs.ErrNotExist) {
			return "", notFound{fmt.Errorf("--dir: %w", err)}
		}
		return f.dir, nil
	}
	if _, set := a.env(dataDirVar); a.dataDirGiven() || set {
		return a.resolveDataDir(false)
	}
	return os.Getwd()
}

func (a *app) benchAppend(ctx context.Context, f benchFlags) (err error) {
	codec, err := record.ParseCodec(f.compress)
	if err != nil {
		return usageError{fmt.Errorf("--compress is %q: want none, s2 or zstd", f.compress)}
	}
	base, err := a.benchDir(f)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(base, "ringfence-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	seconds := f.seconds
	if seconds == 0 {
		seconds = 5
	}
	w := bench.Append{IO: a.engine, RecordSize: int(f.record), BatchBytes: int(f.batch), BatchRecords: f.records, InFlight: f.inFlight, Ahead: f.ahead, Workers: f.workers,
		Codec: codec, SegmentBytes: int64(f.segment), RetainBytes: int64(f.retain), RollEvery: f.rollEvery, Seconds: seconds, Over: f.over, Rate: f.rate, AllowErrors: f.allowErrors}
	if w.BatchBytes == 0 {
		w.InFlight, w.Ahead = 1, 0
	}
	if n := w.WarmBytes(); n > 0 {
		fmt.Fprintf(a.err, "bench: first %s are written that do not count, so that files are written again in what does; --retain 0 leaves that out\n", bytesText(n))
	}
	bar := a.progress("bench", int64(seconds*1000), func(ms int64) string { return fmt.Sprintf("%.1f s", float64(ms)/1000) })
	w.Progress = func(done time.Duration, _ int64) { bar.set(done.Milliseconds()) }
	res, floor, err := a.measureAppend(ctx, w, dir, f.floor, int64(f.floorSize))
	bar.end()
	if err != nil {
		return err
	}
	return a.reportAppend(res, floor, dir)
}

// measureAppend runs the workload and, if wanted, the floor of its shape just before.
func (a *app) measureAppend(ctx context.Context, w bench.Append, dir string, withFloor bool, floorBytes int64) (res bench.Result, floor *bench.Floor, err error) {
	run, err := w.Start(ctx, dir+"/data")
	if err != nil {
		return res, nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	if withFloor {
		scratch, err := bench.NewScratch(dir, floorBytes)
		if err != nil {
			return res, nil, err
		}
		defer scratch.Close()
		f, err := bench.Measure(ctx, scratch, floorShape(w))
		if err != nil {
			return res, nil, err
		}
		floor = &f
	}
	if res, err = run.Measure(ctx); err != nil {
		return res, floor, err
	}
	if res.Sent.Errors == 0 {
		if res.ReadBack, err = run.ReadBack(ctx); errors.Is(err, bench.ErrReadBack) {
			err = unproven{err}
		}
	}
	return res, floor, err
}

// floorShape is the device's side of a workload: durable writes of a batch each.
func floorShape(w bench.Append) bench.Shape {
	block, depth := w.BatchBytes, w.InFlight*w.Workers
	if w.BatchRecords > 0 {
		block = min(block, w.BatchRecords*(w.RecordSize+16))
	}
	if block == 0 { // record by record: what waits shares one flush
		block, depth = w.RecordSize*w.Workers, 1
	}
	block = (block + 4095) / 4096 * 4096
	return bench.Shape{Durable: true, Grow: w.RetainBytes == 0, Block: block, Depth: min(depth, 64), Seconds: w.Seconds}
}

func (a *app) reportAppend(res bench.Result, floor *bench.Floor, dir string) error {
	host := bench.ThisHost(dir)
	out := struct {
		Host   bench.Host   `json:"host"`
		Result bench.Result `json:"result"`
		Floor  *bench.Floor `json:"floor,omitempty"`
		Ratio  *float64     `json:"ratio,omitempty"`
	}{Host: host, Result: res, Floor: floor}
	ok, why := res.Valid()
	if ok && floor != nil {
		ratio := res.MBps() / floor.MBps
		out.Ratio = &ratio
	}
	err := a.report(out, func() {
		a.printf("%s\n\n%s", host, res.String())
		if floor == nil {
			return
		}
		a.printf("\nfloor: %s, %s, buffers on %s\n  rate        %.1f MB/s, %.0f writes/s\n  latency     %s\n  CPU         %.3f s/GiB\n",
			floor.Shape, floor.Tool, floor.Pages, floor.MBps, floor.OpsPerS, floor.Latency, floor.CPU)
		if !strings.HasPrefix(floor.Tool, "fio") {
			a.printf("  (fio is not installed; with it the floor is the usual one: apt-get install fio)\n")
		}
		if out.Ratio != nil {
			a.printf("\nratio: %.2f of the floor's rate in payload bytes; latency p50 %.2f and p99 %.2f of the floor's\n", *out.Ratio,
				float64(res.Sent.Latency.P50)/float64(floor.Latency.P50), float64(res.Sent.Latency.P99)/float64(floor.Latency.P99))
		}
	})
	if err == nil && !ok {
		err = unproven{errors.New(why)}
	}
	return err
}

func (a *app) benchSuite(ctx context.Context, f benchFlags) error {
	dir, err := a.benchDir(f)
	if err != nil {
		return err
	}
	s := bench.Suite{Dir: dir, Network: f.over != "", Shared: f.shared, IO: a.engine, Runs: f.runs, Seconds: f.seconds, Rows: f.rows, SegmentBytes: int64(f.segment), RetainBytes: int64(f.retain), FloorBytes: int64(f.floorSize), Child: a.fillAndKill, Servant: a.servant,
		Say: func(format string, args ...any) { fmt.Fprintf(a.err, format+"\n", args...) }}
	t, err := s.Run(ctx)
	if err != nil {
		return err
	}
	failed := 0
	for _, o := range t.Outcomes {
		if o.Error != "" {
			failed++
		}
	}
	err = a.report(t, func() {
		if f.markdown {
			a.printf("%s", t.Markdown())
		} else {
			a.printTable(t)
		}
	})
	if err == nil && failed > 0 {
		err = unproven{fmt.Errorf("%s could not be measured", plural(failed, "row"))}
	}
	return err
}

func (a *app) printTable(t bench.Table) {
	a.printf("\n%s\nfloor: %s; %.1f s a measurement\n\n", t.Host, t.Floor, t.Seconds)
	rows := [][]string{{"ROW", "WORKLOAD", "UNIT", "ENGINE", "FLOOR", "RATIO", "WANTED", ""}}
	reached := 0
	for _, o := range t.Outcomes {
		verdict := "missed"
		switch {
		case o.Error != "":
			verdict = "failed: " + o.Error
		case o.Reached:
			verdict = "reached"
			reached++
		}
		rows = append(rows, []string{o.ID, o.Name, o.Unit, bench.Figure(o.Median.Engine), bench.Figure(o.Median.Floor),
			fmt.Sprintf("%.3f", o.Median.Ratio), o.Wanted(), verdict})
	}
	a.table(rows...)
	a.printf("\n%d of %d rows reached\n", reached, len(t.Outcomes))
}

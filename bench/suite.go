package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Suite runs the rows of the performance table: each row's workload and its floor
// in turn, several times, and the medians of what came out.
type Suite struct {
	Dir     string  // where data and floors go; a directory of their own is made in it
	IO      string  // how the engine reaches the disk
	Runs    int     // of each row; 0 means 5
	Seconds float64 // of each measurement; 0 means 2
	Rows    []string
	Network bool // the rows are TCPRows
	Shared  bool // the rows are SharedRows
	// SegmentBytes is the size of a segment, 0 for the engine's default of 64 MiB;
	// RetainBytes what the recycled rows keep, 0 for four segments.
	SegmentBytes, RetainBytes int64
	// FloorBytes is the size of the file that floors run on; 0 means 1 GiB.
	FloorBytes int64
	// Child runs a process that fills dir (FillForReopen) and is killed when it has.
	Child func(ctx context.Context, dir string, shape Reopen) error
	// Servant makes the command of a process that runs Serve.
	Servant func(ctx context.Context, v Service, segment, retain int64) (*exec.Cmd, error)
	// Say hears what is going on, a line at a time.
	Say func(format string, args ...any)

	scratch *Scratch
	costs   Costs
	rowOne  []Sample // of the first row, which others are compared with
}

// Sample is one run of a row: what the engine reached and what the floor did, in
// the row's unit, and what else is worth knowing.
type Sample struct {
	Engine float64            `json:"engine"`
	Floor  float64            `json:"floor"`
	Ratio  float64            `json:"ratio"`
	Notes  map[string]float64 `json:"notes,omitempty"`
}

// Row is a line of the performance table.
type Row struct {
	ID      string // short, for choosing
	Name    string // the workload
	Against string // the floor
	Unit    string
	// Want is the ratio to reach: at most that if Less, else at least.
	Want float64
	Less bool

	run func(ctx context.Context, s *Suite, dir string) ([]Sample, error)
}

// Outcome is a row's result: the medians of its runs.
type Outcome struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Against string   `json:"against"`
	Unit    string   `json:"unit"`
	Runs    int      `json:"runs"`
	Median  Sample   `json:"median"`
	Want    float64  `json:"want"`
	Less    bool     `json:"at_most"`
	Reached bool     `json:"reached"`
	Samples []Sample `json:"samples"`
	Error   string   `json:"error,omitempty"`
}

// Table is a whole run of the suite.
type Table struct {
	Host     Host      `json:"host"`
	When     time.Time `json:"when"`
	Seconds  float64   `json:"seconds_per_measurement"`
	Segment  int64     `json:"segment_bytes"`
	Floor    string    `json:"floor_tool"`
	Costs    Costs     `json:"costs"`
	Outcomes []Outcome `json:"rows"`
}

// Run runs the rows. A row that fails is reported and the others go on.
func (s *Suite) Run(ctx context.Context) (t Table, err error) {
	rows, err := s.begin()
	if err != nil {
		return t, err
	}
	dir, err := os.MkdirTemp(s.Dir, "bench-")
	if err != nil {
		return t, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if s.scratch, err = NewScratch(dir, s.FloorBytes); err != nil {
		return t, err
	}
	if s.costs, err = MeasureCosts(1024, 1<<20); err != nil {
		return t, err
	}
	probe, err := Measure(ctx, s.scratch, Shape{Durable: true, Block: 1 << 20, Depth: 4, Seconds: 0.5})
	if err != nil {
		return t, err
	}
	t = Table{Host: ThisHost(dir), When: time.Now().UTC(), Seconds: s.Seconds, Segment: s.SegmentBytes, Floor: probe.Tool + ", buffers on " + probe.Pages, Costs: s.costs}
	s.Say("%d rows with %d runs of %g s each, as much again for their floors: %s and more; fewer rows or runs take less", len(rows), s.Runs, s.Seconds,
		time.Duration(2*float64(len(rows)*s.Runs)*s.Seconds*float64(time.Second)).Round(time.Second))
	for i, row := range rows {
		s.Say("%d of %d: %s", i+1, len(rows), row.Name)
		data := fmt.Sprintf("%s/row%d", dir, i)
		samples, err := row.run(ctx, s, data)
		if ctx.Err() != nil {
			return t, ctx.Err()
		}
		if rerr := os.RemoveAll(data); rerr != nil {
			return t, fmt.Errorf("bench: %w", rerr)
		}
		if row.ID == "1m" {
			s.rowOne = samples
		}
		o := row.outcome(samples, err)
		s.Say("    %s", o.line())
		t.Outcomes = append(t.Outcomes, o)
	}
	return t, nil
}

func (s *Suite) begin() ([]Row, error) {
	if s.Runs == 0 {
		s.Runs = 5
	}
	if s.Seconds == 0 {
		s.Seconds = 2
	}
	if s.SegmentBytes == 0 {
		s.SegmentBytes = 64 << 20
	}
	if s.RetainBytes == 0 {
		s.RetainBytes = 4 * s.SegmentBytes
	}
	if s.Runs < 1 || s.Seconds <= 0 {
		return nil, fmt.Errorf("bench: %d runs of %g seconds", s.Runs, s.Seconds)
	}
	if s.Say == nil {
		s.Say = func(string, ...any) {}
	}
	all := Rows()
	switch {
	case s.Network:
		all = TCPRows()
	case s.Shared:
		all = SharedRows()
	}
	if len(s.Rows) == 0 {
		return all, nil
	}
	var rows []Row
	for _, id := range s.Rows {
		i := slices.IndexFunc(all, func(r Row) bool { return r.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("bench: there is no row %q; there are %s", id, strings.Join(RowIDs(all), ", "))
		}
		rows = append(rows, all[i])
	}
	return rows, nil
}

// RowIDs lists the names of rows.
func RowIDs(rows []Row) (ids []string) {
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func (r Row) outcome(samples []Sample, err error) Outcome {
	o := Outcome{ID: r.ID, Name: r.Name, Against: r.Against, Unit: r.Unit, Want: r.Want, Less: r.Less, Runs: len(samples), Samples: samples}
	switch {
	case err != nil:
		o.Error = err.Error()
	case len(samples) == 0:
		o.Error = "nothing was measured"
	default:
		o.Median = medians(samples)
		o.Reached = o.Median.Ratio >= r.Want && !r.Less || o.Median.Ratio <= r.Want && r.Less
	}
	return o
}

// medians is the median of every figure on its own.
func medians(samples []Sample) Sample {
	pick := func(f func(Sample) float64) float64 {
		var v []float64
		for _, s := range samples {
			v = append(v, f(s))
		}
		return median(v)
	}
	m := Sample{
		Engine: pick(func(s Sample) float64 { return s.Engine }),
		Floor:  pick(func(s Sample) float64 { return s.Floor }),
		Ratio:  pick(func(s Sample) float64 { return s.Ratio }),
		Notes:  map[string]float64{},
	}
	for name := range samples[0].Notes {
		m.Notes[name] = pick(func(s Sample) float64 { return s.Notes[name] })
	}
	return m
}

func median(v []float64) float64 {
	slices.Sort(v)
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func (o Outcome) line() string {
	if o.Error != "" {
		return "failed: " + o.Error
	}
	verdict := "reached"
	if !o.Reached {
		verdict = "missed"
	}
	return fmt.Sprintf("%s %s, floor %s: ratio %.3f, wanted %s: %s", Figure(o.Median.Engine), o.Unit, Figure(o.Median.Floor), o.Median.Ratio, o.Wanted(), verdict)
}

// Wanted is the ratio to reach, as text.
func (o Outcome) Wanted() string {
	if o.Less {
		return fmt.Sprintf("<= %.2f", o.Want)
	}
	return fmt.Sprintf(">= %.2f", o.Want)
}

// Figure prints a number with three digits.
func Figure(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

// Markdown is the table as the README shows it.
func (t Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s; floor: %s; segments of %s; %.1f s a measurement.\n", t.When.Format("2006-01-02"), t.Host, t.Floor, sizeName(t.Segment), t.Seconds)
	fmt.Fprintf(&b, "Copy, hash and verify of a GiB cost %.3f + %.3f + %.3f s of CPU here.\n\n", t.Costs.Copy, t.Costs.Hash, t.Costs.Verify)
	b.WriteString("| linked engine | floor beside it | unit | engine | floor | ratio | wanted | |\n|---|---|---|---|---|---|---|---|\n")
	for _, o := range t.Outcomes {
		if o.Error != "" {
			fmt.Fprintf(&b, "| %s | %s | %s | | | | %s | failed: %s |\n", o.Name, o.Against, o.Unit, o.Wanted(), o.Error)
			continue
		}
		verdict := "reached"
		if !o.Reached {
			verdict = "missed"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %.3f | %s | %s (n=%d) |\n", o.Name, o.Against, o.Unit,
			Figure(o.Median.Engine), Figure(o.Median.Floor), o.Median.Ratio, o.Wanted(), verdict, o.Runs)
	}
	for _, o := range t.Outcomes {
		if len(o.Median.Notes) > 0 {
			fmt.Fprintf(&b, "\n%s:", o.Name)
			names := make([]string, 0, len(o.Median.Notes))
			for name := range o.Median.Notes {
				names = append(names, name)
			}
			slices.Sort(names)
			for i, name := range names {
				if i > 0 {
					b.WriteString(";")
				}
				fmt.Fprintf(&b, " %s %s", name, Figure(o.Median.Notes[name]))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

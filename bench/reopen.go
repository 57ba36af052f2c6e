package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Reopen is a directory to be opened after a kill: so many sealed segments and so
// many that were being written.
type Reopen struct {
	Sealed      int
	SealedBytes int64
	Open        int // a power of two
	OpenBytes   int64
}

// FullReopen is the shape of the performance table.
func FullReopen() Reopen {
	return Reopen{Sealed: 1000, SealedBytes: 4 << 20, Open: 64, OpenBytes: 64 << 20}
}

const (
	sealedTopic = "sealed"
	openTopic   = "open"
)

// FillForReopen makes that directory with an engine of this process and keeps
// writing a little to the open segments until ctx ends or the process is killed.
// ready is called when all is there.
func FillForReopen(ctx context.Context, dir, io string, shape Reopen, ready func() error) (err error) {
	e, err := engine.Open(dir, engine.Options{IO: io, RawWait: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for name, size := range map[string]int64{sealedTopic: shape.SealedBytes, openTopic: 4 * shape.OpenBytes} {
		if err := e.SetPolicy(ctx, name, engine.Policy{SegmentMaxBytes: engine.Limit(size)}); err != nil {
			return err
		}
		if err := e.CreateTopic(ctx, name, engine.TopicOptions{Policy: name}); err != nil {
			return err
		}
	}
	if err := fillSealed(ctx, e, shape); err != nil {
		return fmt.Errorf("bench: filling the sealed segments: %w", err)
	}
	for n := 1; n < shape.Open; n *= 2 {
		if err := splitAll(ctx, e, openTopic); err != nil {
			return fmt.Errorf("bench: splitting: %w", err)
		}
	}
	p, err := e.NewProducer(engine.ProducerOptions{Topic: openTopic, BatchBytes: 256 << 10})
	if err != nil {
		return err
	}
	f := filler{p: p, text: benchText()}
	if err := f.fill(ctx, int64(shape.Open)*shape.OpenBytes); err != nil {
		return fmt.Errorf("bench: filling the open segments: %w", err)
	}
	if err := ready(); err != nil {
		return err
	}
	for ctx.Err() == nil { // the kill is to come while writes are in flight
		if err := f.fill(ctx, 1<<20); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return ctx.Err()
}

func fillSealed(ctx context.Context, e *engine.Engine, shape Reopen) error {
	p, err := e.NewProducer(engine.ProducerOptions{Topic: sealedTopic, BatchBytes: 1 << 20})
	if err != nil {
		return err
	}
	f := filler{p: p, text: benchText()}
	for {
		d, err := e.Describe(ctx, sealedTopic)
		if err != nil {
			return err
		}
		if missing := shape.Sealed - d.Segments; missing > 0 {
			if err := f.fill(ctx, int64(missing)*shape.SealedBytes); err != nil {
				return err
			}
			continue
		}
		if _, err := e.Roll(ctx, sealedTopic); err != nil {
			return err
		}
		return p.Close(ctx)
	}
}

// splitAll splits every active range of a topic.
func splitAll(ctx context.Context, e *engine.Engine, name string) error {
	d, err := e.Describe(ctx, name)
	if err != nil {
		return err
	}
	for _, r := range d.AllRanges {
		if r.Active {
			if _, _, err := e.SplitRange(ctx, name, r.Seq); err != nil {
				return err
			}
		}
	}
	return nil
}

// filler stores records with keys all over the keyspace.
type filler struct {
	p    *engine.Producer
	text []byte
	n    int
}

func (f *filler) fill(ctx context.Context, bytes int64) error {
	const size = 4 << 10
	failed := make(chan error, 1)
	done := func(_ engine.Placement, err error) {
		if err != nil {
			select {
			case failed <- err:
			default:
			}
		}
	}
	for ; bytes > 0; bytes -= size {
		f.n++
		key := fmt.Appendf(nil, "key-%d", f.n)
		at := f.n * 512 % (len(f.text) - size)
		if err := f.p.Append(ctx, engine.Record{Key: key, Value: f.text[at : at+size]}, done); err != nil {
			return err
		}
	}
	if err := f.p.Flush(ctx); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// tails is how many bytes of the open segments in a directory nothing proves to
// have been durable, and how many such segments there are.
func tails(dir string) (bytes int64, open int, err error) {
	d, err := disk.Open(filepath.Join(dir, "log"), disk.Options{Engine: "pool", ArenaBytes: 4 << 20, ReadOnly: true})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	topics, err := d.List("topics")
	if err != nil {
		return 0, 0, err
	}
	for _, t := range topics {
		files, err := d.List("topics/" + t.Name)
		if err != nil {
			return 0, 0, err
		}
		for _, f := range files {
			if !strings.HasSuffix(f.Name, ".seg") {
				continue
			}
			v, err := segfile.Recover(d, "topics/"+t.Name+"/"+f.Name)
			if err != nil {
				return 0, 0, err
			}
			if v.Latch.State() == fence.Open && v.Err() == nil {
				open++
				bytes += max(0, v.End.Position-v.Durable) + v.Cut.Length
			}
		}
	}
	return bytes, open, nil
}

// reopen times Open after a kill. The floor is what fio needs to read the tails
// that recovery has to read, and a fixed 200 ms are allowed on top of 1.5 times
// that; so that one ratio says it, the floor includes 200/1.5 ms.
func reopen(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
	if s.Child == nil {
		return nil, errors.New("bench: this row needs a process to kill")
	}
	for range s.Runs {
		one, err := s.reopenOnce(ctx, fmt.Sprintf("%s.%d", dir, len(samples)))
		if err != nil {
			return samples, err
		}
		s.Say("    run %d: %s against %s", len(samples)+1, Figure(one.Engine), Figure(one.Floor))
		samples = append(samples, one)
	}
	return samples, nil
}

func (s *Suite) reopenOnce(ctx context.Context, dir string) (Sample, error) {
	shape := FullReopen()
	defer removeAll(dir)
	if err := s.Child(ctx, dir, shape); err != nil {
		return Sample{}, err
	}
	bytes, open, err := tails(dir)
	if err != nil {
		return Sample{}, err
	}
	if open < shape.Open {
		return Sample{}, fmt.Errorf("bench: %d open segments after the kill, want %d", open, shape.Open)
	}
	floor, err := Measure(ctx, s.scratch, Shape{Read: true, Block: 1 << 20, Depth: 8, Seconds: min(s.Seconds, 1)})
	if err != nil {
		return Sample{}, err
	}
	began := time.Now()
	e, err := engine.Open(dir, engine.Options{IO: s.IO, RawWait: true})
	if err != nil {
		return Sample{}, err
	}
	took := time.Since(began)
	recovered := e.Opened().Recovered
	if err := e.Close(); err != nil {
		return Sample{}, err
	}
	read := float64(bytes) / (floor.MBps * 1e6) * 1000
	limit := read + 200/1.5
	ms := float64(took) / 1e6
	return Sample{Engine: ms, Floor: limit, Ratio: ms / limit, Notes: map[string]float64{
		"tail MiB": float64(bytes) / (1 << 20), "segments recovered": float64(recovered), "fio read of the tails ms": read}}, nil
}

// removeAll makes room for the next run; what cannot be removed goes with the suite's directory.
func removeAll(dir string) { _ = os.RemoveAll(dir) }

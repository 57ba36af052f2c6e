package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/segfile/record"
	"github.com/spf13/cobra"
)

type produceFlags struct {
	file     string
	shm      string
	keys     string
	headers  []string
	batch    sizeFlag
	compress string
	create   bool
	producer uint64
	linger   time.Duration
}

func (a *app) produceCommand() *cobra.Command {
	f := produceFlags{batch: 256 << 10}
	cmd := &cobra.Command{
		Use:   "produce TOPIC",
		Short: "Store the lines of standard input or a file",
		Long: `Store each line of standard input, or of --file, as one record. A line is what
stands between newlines; it is stored byte for byte. The command ends when every
line is on stable storage, and says how many were.

Give --producer-id to make a rerun safe: after a crash, the same input under the
same id stores only what is missing. Lines are recognised by their number, not by
what they say, so an id belongs to one input of one topic for ever: other input
under it is taken for a repeat and is not stored. A warning says when lines were.
Records of one key keep their order.`,
		Example: `  journalctl -o cat | ringfence produce logs --create
  ringfence produce logs --file access.log --key-regexp '^(\S+)' --producer-id 1
  ringfence produce logs --shm /run/ringfence/shm < access.log`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.produce(cmd.Context(), args[0], f) },
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.file, "file", "f", "", "read this file instead of standard input")
	fl.StringVar(&f.shm, "shm", "", "share memory with the server at this socket ('ringfence serve --shm'), in place of --server or --data-dir")
	fl.StringVar(&f.keys, "key-regexp", "", "take a line's key from its first match: group 1, or all of it; lines without a match have no key")
	fl.StringArrayVar(&f.headers, "header", nil, "NAME=VALUE put on every record; may be given again")
	fl.Var(&f.batch, "batch", "most bytes of a batch, and so of a record")
	fl.StringVar(&f.compress, "compress", "none", "none, s2 or zstd")
	fl.BoolVar(&f.create, "create", false, "create the topic if it does not exist")
	fl.Uint64Var(&f.producer, "producer-id", 0, "recognise the lines this id stored before; one id for one input, for ever; 0 draws a new one")
	fl.DurationVar(&f.linger, "linger", 0, "keep a batch open this long for more lines")
	return cmd
}

const smallestBatch = 4 << 10 // that the engine takes

// produceReport is what produce says at the end.
type produceReport struct {
	Topic      string  `json:"topic"`
	Records    int64   `json:"records"`    // acknowledged
	Duplicates int64   `json:"duplicates"` // of them, stored before by the same producer
	Bytes      int64   `json:"bytes"`      // of keys and values
	Seconds    float64 `json:"seconds"`
	Producer   uint64  `json:"producer_id,string"` // too large for many readers of numbers
}

func (a *app) produce(ctx context.Context, topic string, f produceFlags) error {
	switch {
	case f.batch < smallestBatch || f.batch > engine.MaxBatchBytes:
		return usageError{fmt.Errorf("--batch is %d bytes: want %s to %s", f.batch, bytesText(smallestBatch), bytesText(engine.MaxBatchBytes))}
	case f.linger < 0:
		return usageError{fmt.Errorf("--linger is %s: want 0 or more", f.linger)}
	}
	codec, err := record.ParseCodec(f.compress)
	if err != nil {
		return usageError{fmt.Errorf("--compress is %q: want none, s2 or zstd", f.compress)}
	}
	keyOf, err := keyFunc(f.keys)
	if err != nil {
		return err
	}
	headers, err := parseHeaders(f.headers)
	if err != nil {
		return err
	}
	in, size, err := a.openInput(ctx, f.file)
	if err != nil {
		return err
	}
	defer in.Close()
	with := func(do func(context.Context, api.Log) error) error { return a.withLog(ctx, f.create, do) }
	if f.shm != "" {
		with = func(do func(context.Context, api.Log) error) error { return a.withShared(ctx, f.shm, 0, do) }
	}
	return with(func(ctx context.Context, l api.Log) error {
		if f.create {
			err := l.CreateTopic(ctx, topic, engine.TopicOptions{})
			if err != nil && !errors.Is(err, engine.ErrTopicExists) {
				return err
			}
		}
		p, err := l.NewProducer(engine.ProducerOptions{Topic: topic, ID: f.producer, BatchBytes: int(f.batch), Codec: codec, Linger: f.linger})
		if err != nil {
			return missingTopic(topic, ", or give --create", err)
		}
		r := &lineProducer{p: p, keyOf: keyOf, headers: headers, named: f.producer != 0, report: produceReport{Topic: topic, Producer: p.ID()}}
		input := newInterruptible(ctx, in)
		defer input.end()
		bar := a.progress("produce "+topic, size, bytesText[int64])
		bar.also = r.slowed
		err = r.run(ctx, newLineReader(input, int(f.batch)), bar)
		// Close waits for what is in flight, also after an error or an interrupt: what
		// is acknowledged by then is counted.
		if cerr := p.Close(context.WithoutCancel(ctx)); err == nil {
			err = cerr
		}
		return r.conclude(ctx, a, err)
	})
}

// lineProducer sends lines and counts the answers.
type lineProducer struct {
	p       api.Producer
	keyOf   func([]byte) []byte
	headers []engine.Header
	named   bool // the producer's id was given
	report  produceReport

	start      time.Time
	acked      atomic.Int64
	duplicates atomic.Int64
	bytes      atomic.Int64
	failed     atomic.Pointer[error]
}

func (r *lineProducer) run(ctx context.Context, lines *lineReader, bar *progress) error {
	defer bar.end()
	r.start = time.Now()
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			return r.p.Flush(ctx)
		}
		if err != nil {
			return err
		}
		if failed := r.failed.Load(); failed != nil {
			return *failed
		}
		rec := engine.Record{Key: r.keyOf(line), Value: line, Headers: r.headers}
		size := int64(len(rec.Key) + len(rec.Value))
		// The lines that were read when a signal comes are stored too.
		err = r.p.Append(context.WithoutCancel(ctx), rec, func(at engine.Placement, err error) { r.answer(at, size, err) })
		if err != nil {
			return fmt.Errorf("line %d: %w", lines.n, err)
		}
		bar.set(lines.read)
	}
}

// slowed says that a quota of the user keeps the records from going faster.
func (r *lineProducer) slowed() string {
	p, ok := r.p.(interface{ Slowed() time.Duration })
	if !ok || p.Slowed() == 0 {
		return ""
	}
	return fmt.Sprintf(", slowed down by the user's quota: waited %s for it", timeText(p.Slowed()))
}

// answer counts one record; it runs on the engine's goroutine.
func (r *lineProducer) answer(at engine.Placement, size int64, err error) {
	if err != nil {
		r.failed.CompareAndSwap(nil, &err)
		return
	}
	r.acked.Add(1)
	r.bytes.Add(size)
	r.duplicates.Add(int64(at.Repeats))
}

func (r *lineProducer) conclude(ctx context.Context, a *app, err error) error {
	if failed := r.failed.Load(); failed != nil && (err == nil || errors.Is(err, api.ErrHalted)) {
		err = *failed // what a producer says after that is for programs
	}
	s := r.report
	s.Records, s.Duplicates, s.Bytes, s.Seconds = r.acked.Load(), r.duplicates.Load(), r.bytes.Load(), time.Since(r.start).Seconds()
	if !r.named {
		s.Duplicates = 0 // a drawn id has sent nothing before: the client sent again what a server had not answered
	}
	if s.Duplicates > 0 {
		fmt.Fprintf(a.err, "ringfence: warning: %s\n", s.repeats())
	}
	if err != nil && ctx.Err() != nil && withoutCancel(err) == nil {
		return told{fmt.Errorf("%w; %s acknowledged, on stable storage", errInterrupted, plural(s.Records, "record"))}
	}
	if err != nil && (s.Records > 0 || client.Unknown(err) || errors.Is(err, client.ErrUnavailable)) {
		then := ""
		if errors.Is(err, engine.ErrOutOfSpace) {
			then = "once that is done, "
		}
		err = fmt.Errorf("%w; %sstore the same input again with --producer-id %d: what was stored is recognised", err, then, s.Producer)
	}
	if err != nil {
		return told{fmt.Errorf("%s stored before this: %w", plural(s.Records, "record"), err)}
	}
	return a.report(s, func() {
		a.printf("%s in %s: %s, %.1f MB/s, all on stable storage\n", plural(s.Records, "record"), timeText(time.Since(r.start)),
			bytesText(s.Bytes), float64(s.Bytes)/1e6/max(s.Seconds, 1e-9))
		if why := r.slowed(); why != "" {
			a.printf("%s\n", strings.TrimPrefix(why, ", "))
		}
		if s.Duplicates > 0 {
			a.printf("of them %s stored before, by their sequence numbers, and not stored again\n", plural(s.Duplicates, "record"))
		}
	})
}

// repeats warns of lines that were not stored because of their sequence numbers:
// right for the same input, a loss for any other.
func (s produceReport) repeats() string {
	what := fmt.Sprintf("sequence numbers 1 to %d of producer %d were stored before: these lines were NOT stored again", s.Duplicates, s.Producer)
	if s.Duplicates < s.Records {
		what = fmt.Sprintf("%d of the first %d sequence numbers of producer %d were stored before: those lines were NOT stored again, the other %d were stored",
			s.Duplicates, s.Records, s.Producer, s.Records-s.Duplicates)
	}
	return what + "; use another --producer-id for other input"
}

// keyFunc returns what takes a key from a line: nil for a line without one.
func keyFunc(pattern string) (func([]byte) []byte, error) {
	if pattern == "" {
		return func([]byte) []byte { return nil }, nil
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, usageError{fmt.Errorf("--key-regexp: %w", err)}
	}
	group := min(re.NumSubexp(), 1)
	return func(line []byte) []byte {
		m := re.FindSubmatchIndex(line)
		if m == nil || m[2*group] < 0 {
			return nil
		}
		return line[m[2*group]:m[2*group+1]:m[2*group+1]]
	}, nil
}

func parseHeaders(texts []string) ([]engine.Header, error) {
	var headers []engine.Header
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, usageError{fmt.Errorf("--header %q: want NAME=VALUE", text)}
		}
		headers = append(headers, engine.Header{Key: []byte(name), Value: []byte(value)})
	}
	return headers, nil
}

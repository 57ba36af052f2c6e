package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/spf13/cobra"
)

type consumeFlags struct {
	group  string
	member string
	from   string
	max    int64
	follow bool
	format string
	shm    string
}

// readerMemory is what a client that sends nothing shares with the server: as little as it
// may.
const readerMemory = 1 << 20

func (a *app) consumeCommand() *cobra.Command {
	var f consumeFlags
	cmd := &cobra.Command{
		Use:   "consume TOPIC",
		Short: "Print the records of a topic",
		Long: `Print a topic's records to standard output; records of one key come in the order
they were written. The end of a run names the cursor to go on from.

With --group the position is kept with the topic. It is committed at least
once a second, after what was printed, so a run that is killed may print its last
records again and never leaves one out.
Without --from a group goes on where it stopped, and everything else begins at the
start. A group's position only moves forward here: a run with --from that ends
before it leaves it as it is. With --from end a new group begins at what was the end when
it was made, whether or not there was a record to print.

Through a server, runs with the same --group share the topic's ranges: each is a member
under the name that --member gives, or one made up, and gets what no other one has.
When one ends, or is silent for as long as the server has it (30 s), the others take
over. A run that is started again under its name takes its own place. With --from
a run is no member and reads the whole topic.

--from is start, end, the cursor that an earlier run named, a time (RFC 3339, or
milliseconds since 1970), or how long ago (90s, 15m, 36h): the first record of each
range that is not older.

--follow waits for records until SIGINT or SIGTERM, which end it with code 0. On a data
directory it is alone: only this process has it, so nobody stores what it would show.
Follow through a server (--server), or link the engine.`,
		Example: `  ringfence consume logs --from start
  ringfence consume logs --group billing --follow --format json
  ringfence consume logs --server 10.0.0.7:4040 --group billing --member billing-1 --follow
  ringfence consume logs --from 2024-05-01T12:00:00Z --max 100
  ringfence consume logs --shm /run/ringfence/shm --from start`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("from") && strings.TrimSpace(f.from) == "" {
				return usageError{errors.New("--from is blank: leave it out, or say from where")}
			}
			if cmd.Flags().Changed("group") && f.group == "" {
				return usageError{errors.New("--group is blank: leave it out, or name the group")}
			}
			return a.consume(cmd.Context(), args[0], f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.group, "group", "", "keep the position under this name")
	fl.StringVar(&f.member, "member", "", "take part in the group under this name, through a server (HOST-PID-RANDOM if not given)")
	fl.StringVar(&f.from, "from", "", "start, end, a cursor, a time, or how long ago (15m)")
	fl.Int64Var(&f.max, "max", 0, "stop after this many records; 0 is all")
	fl.BoolVar(&f.follow, "follow", false, "wait at the end, and for a server that is away, until a signal comes")
	fl.StringVar(&f.shm, "shm", "", "read closed segments from their files, and the rest through the server's socket ('ringfence serve --shm'), in place of --server or --data-dir")
	fl.StringVar(&f.format, "format", "value", "value (one a line), json (one a line), or raw (values with nothing between)")
	return cmd
}

// consumeReport ends a run with --json, on standard error: standard output is the records'.
type consumeReport struct {
	Topic   string `json:"topic"`
	Records int64  `json:"records"`
	Skipped uint64 `json:"skipped"`
	Cursor  string `json:"cursor"` // "" of a member
}

func (a *app) consume(ctx context.Context, topic string, f consumeFlags) error {
	from, err := parseFrom("--from", f.from, f.group, time.Now())
	if err != nil {
		return err
	}
	if f.max < 0 {
		return usageError{fmt.Errorf("--max is %d: want 0, which is all, or more", f.max)}
	}
	write, err := recordWriter(f.format)
	if err != nil {
		return err
	}
	with := func(do func(context.Context, api.Log) error) error { return a.withLog(ctx, false, do) }
	if f.shm != "" {
		with = func(do func(context.Context, api.Log) error) error { return a.withShared(ctx, f.shm, readerMemory, do) }
	}
	return with(func(ctx context.Context, l api.Log) error {
		if f.member, err = memberName(l, f); err != nil {
			return err
		}
		c, err := l.NewConsumer(engine.ConsumerOptions{Topic: topic, Group: f.group, Member: f.member, From: from})
		if err != nil {
			return missingTopic(topic, "", err)
		}
		s := consumeReport{Topic: topic}
		p := &printer{app: a, c: c, flags: f, report: &s, out: bufio.NewWriterSize(a.out, 256<<10), write: write}
		err = errors.Join(p.run(ctx), c.Close())
		switch rest := withoutCancel(err); {
		case err != nil && ctx.Err() != nil && rest != nil:
			err = told{rest}
		case rest == nil && f.follow:
			err = nil // that is how following ends
		}
		if a.json {
			if jerr := json.NewEncoder(a.err).Encode(s); err == nil {
				err = jerr
			}
		} else if f.member != "" {
			fmt.Fprintf(a.err, "%s by member %s of group %s\n", plural(s.Records, "record"), f.member, f.group)
		} else if s.Cursor != "" {
			fmt.Fprintf(a.err, "%s; go on with --from %s\n", plural(s.Records, "record"), s.Cursor)
		}
		return err
	})
}

// pageRecords bounds a page.
const pageRecords = 4096

// A group commits after so many records, or so long, and at the end.
const (
	commitRecords = 64 << 10
	commitEvery   = time.Second
)

// printer prints pages and commits what was printed.
type printer struct {
	*app
	c       api.Consumer
	flags   consumeFlags
	report  *consumeReport
	out     *bufio.Writer
	write   func(*bufio.Writer, *engine.ConsumedRecord) error
	pending int64 // records and skips since the last commit
	settled bool  // the group's position is what --from says, at least: it was committed
	commits time.Time
}

func (p *printer) run(ctx context.Context) error {
	p.commits = time.Now()
	for p.flags.max == 0 || p.report.Records < p.flags.max {
		page, err := p.next(ctx)
		if err == nil && page.CaughtUp {
			if !p.flags.follow {
				break
			}
			if err := p.commit(ctx); errors.Is(err, client.ErrUnavailable) {
				continue
			} else if err != nil { // shown before waiting
				return err
			}
			page, err = p.c.Poll(ctx, p.want())
		}
		if p.flags.follow && errors.Is(err, client.ErrUnavailable) && ctx.Err() == nil {
			continue // the client has waited, and says so; the server may come back
		}
		if err != nil {
			return errors.Join(err, p.commit(ctx))
		}
		if err := p.print(page); err != nil {
			return err // nothing more can be shown, so nothing is committed
		}
		if p.pending >= commitRecords || time.Since(p.commits) >= commitEvery {
			if err := p.commit(ctx); err != nil {
				return err
			}
		}
	}
	return p.commit(ctx)
}

// next is the next page; empty, with CaughtUp, at the end.
func (p *printer) next(ctx context.Context) (engine.Page, error) {
	if err := ctx.Err(); err != nil {
		return engine.Page{}, err
	}
	if p.flags.member != "" {
		// The call may commit what was printed, for a range to be handed over.
		if err := p.out.Flush(); err != nil {
			return engine.Page{}, fmt.Errorf("standard output: %w", err)
		}
	}
	return p.c.Fetch(p.want())
}

// want is how many records the next page may have.
func (p *printer) want() int {
	if p.flags.max > 0 {
		return int(min(pageRecords, p.flags.max-p.report.Records))
	}
	return pageRecords
}

func (p *printer) print(page engine.Page) error {
	for _, skip := range page.Skips {
		why := "retention removed them, or their producer changed them while they were written"
		if skip.Damaged {
			why = "they were damaged or missing, and their loss was accepted, or their producer damaged them while they were written"
		}
		p.report.Skipped += skip.Offsets
		fmt.Fprintf(p.err, "ringfence: range %d: %s from %d on are gone: %s\n", skip.Range, plural(skip.Offsets, "offset"), skip.From, why)
	}
	for i := range page.Records {
		if err := p.write(p.out, &page.Records[i]); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
	p.report.Records += int64(len(page.Records))
	p.pending += int64(len(page.Records) + len(page.Skips))
	return nil
}

// commit shows what was printed, then stores the group's position: a record is
// never skipped because of a kill, at worst printed again.
func (p *printer) commit(ctx context.Context) error {
	if err := p.out.Flush(); err != nil {
		return fmt.Errorf("standard output: %w", err)
	}
	if p.flags.member == "" { // else it is of some ranges only
		p.report.Cursor = p.c.Cursor() // behind what was shown, however the run ends
	}
	p.commits = time.Now()
	if p.flags.group == "" || p.pending == 0 && (p.settled || p.flags.from == "") {
		return nil
	}
	// What was printed is committed also when a signal came meanwhile.
	err := p.c.Commit(context.WithoutCancel(ctx))
	if errors.Is(err, client.ErrRangeMoved) && !errors.Is(err, client.ErrMemberReplaced) {
		fmt.Fprintf(p.err, "ringfence: %v: another one has it, or the server started again; some of what was printed is printed once more\n", err)
		err = nil
	}
	if err != nil {
		return err
	}
	p.pending, p.settled = 0, true
	return nil
}

// memberName is who takes part in the group; "" for a run that reads the whole topic.
func memberName(l api.Log, f consumeFlags) (string, error) {
	_, remote := l.(remoteLog)
	switch {
	case f.member != "" && (f.group == "" || f.from != "" || !remote):
		return "", usageError{errors.New("--member takes part in a --group, through a --server, and goes on where the group is: without --from")}
	case f.member != "" || f.group == "" || f.from != "" || !remote:
		return f.member, nil
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%08x", host, os.Getpid(), rand.Uint32()), nil
}

// parseFrom reads --from, or the flag of that kind that is named. A number is a time in milliseconds; cursors are never
// numbers, they are far longer.
func parseFrom(flag, text, group string, now time.Time) (engine.From, error) {
	switch {
	case text == "" && group != "":
		return engine.FromGroup(), nil
	case text == "" || text == "start":
		return engine.FromStart(), nil
	case text == "end":
		return engine.FromEnd(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return engine.FromTime(t), nil
	}
	if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
		return engine.FromTime(time.UnixMilli(ms)), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return engine.FromTime(now.Add(-d)), nil
	}
	if strings.Trim(text, "0123456789") == "" {
		return engine.From{}, usageError{fmt.Errorf("%s is %s: as milliseconds since 1970 that is too late for any record", flag, text)}
	}
	if len(text) < 16 || strings.ContainsAny(text, " :") {
		return engine.From{}, usageError{fmt.Errorf("%s is %q: want start, end, a cursor, a time like 2024-05-01T12:00:00Z, or how long ago, like 15m", flag, text)}
	}
	return engine.FromCursor(text), nil
}

func recordWriter(format string) (func(*bufio.Writer, *engine.ConsumedRecord) error, error) {
	switch format {
	case "value":
		return func(w *bufio.Writer, r *engine.ConsumedRecord) error {
			_, _ = w.Write(r.Value) // the error of a bufio.Writer stays until the next call
			return w.WriteByte('\n')
		}, nil
	case "raw":
		return func(w *bufio.Writer, r *engine.ConsumedRecord) error {
			_, err := w.Write(r.Value)
			return err
		}, nil
	case "json":
		return func(w *bufio.Writer, r *engine.ConsumedRecord) error {
			return writeRecordJSON(w, r.Range, r.Offset, r.Time, r.Key, r.Value, r.Headers)
		}, nil
	}
	return nil, usageError{fmt.Errorf("--format is %q: want value, json or raw", format)}
}

// recordJSON is one record on one line. Bytes that are not UTF-8 text are given
// as base64 under another name; null is null.
type recordJSON struct {
	Range       uint32       `json:"range"`
	Offset      uint64       `json:"offset"`
	Time        string       `json:"time"`
	Key         *string      `json:"key"`
	KeyBase64   string       `json:"key_base64,omitempty"`
	Value       *string      `json:"value"`
	ValueBase64 string       `json:"value_base64,omitempty"`
	Headers     []headerJSON `json:"headers,omitempty"`
}

type headerJSON struct {
	Name        string  `json:"name"`
	Value       *string `json:"value"`
	ValueBase64 string  `json:"value_base64,omitempty"`
}

func writeRecordJSON(w io.Writer, rng uint32, offset uint64, at time.Time, key, value []byte, headers []engine.Header) error {
	r := recordJSON{Range: rng, Offset: offset, Time: at.UTC().Format(time.RFC3339Nano)}
	r.Key, r.KeyBase64 = textOrBase64(key)
	r.Value, r.ValueBase64 = textOrBase64(value)
	for _, h := range headers {
		j := headerJSON{Name: string(h.Key)}
		j.Value, j.ValueBase64 = textOrBase64(h.Value)
		r.Headers = append(r.Headers, j)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}

func textOrBase64(b []byte) (text *string, encoded string) {
	switch {
	case b == nil:
		return nil, ""
	case utf8.Valid(b):
		s := string(b)
		return &s, ""
	}
	return nil, base64.StdEncoding.EncodeToString(b)
}

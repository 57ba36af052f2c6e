package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
	"github.com/spf13/cobra"
)

func (a *app) segmentDumpCommand() *cobra.Command {
	var frames bool
	cmd := &cobra.Command{
		Use:   "dump FILE",
		Short: "Print every record of a segment file",
		Long: `Print every record that can be read from a segment file, one a line, after checking
it. Damaged stretches are named and stepped over; the exit code is 7
then, or 0 if their loss was accepted.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withSegment(args[0], true, func(d disk.Disk, name string) error {
				return a.dump(cmd.Context(), d, name, frames)
			})
		},
	}
	cmd.Flags().BoolVar(&frames, "frames", false, "print the frames and marks instead of their records")
	return cmd
}

func (a *app) dump(ctx context.Context, d disk.Disk, name string, frames bool) error {
	rep, verr := segfile.Verify(d, name, func(int64, int64) error { return ctx.Err() })
	if verr != nil && !errors.Is(verr, segfile.ErrDamaged) || rep.FileSize == 0 {
		return verr
	}
	f, err := d.Open(name, true)
	if err != nil {
		return err
	}
	defer f.Close()
	out := bufio.NewWriterSize(a.out, 256<<10)
	p := &dumper{app: a, out: out, meta: rep.Meta, frames: frames}
	err = eachFrame(ctx, f, rep, p.frame, p.hole)
	if err := errors.Join(err, out.Flush()); err != nil {
		return err
	}
	return verr
}

// eachFrame visits the frames of a file, and the stretches where there are none.
func eachFrame(ctx context.Context, f disk.File, rep segfile.Report, frame func(pos int64, h record.Head, b []byte) error, hole func(segfile.Hole) error) error {
	buf := make([]byte, 1<<20)
	pos, holes := int64(segfile.DataStart), rep.Holes
	for ctx.Err() == nil {
		limit := rep.End
		for len(holes) > 0 && holes[0].Position+holes[0].Length <= pos {
			holes = holes[1:]
		}
		if len(holes) > 0 {
			limit = fence.End{Offset: holes[0].Offset, Position: holes[0].Position}
		}
		frames, next, err := segfile.ReadFrames(f, rep.Meta.Salt, buf, pos, limit)
		var small *segfile.BufferError
		switch {
		case errors.As(err, &small):
			buf = make([]byte, small.Need)
			continue
		case errors.Is(err, io.EOF) && limit != rep.End, len(holes) > 0 && pos >= holes[0].Position:
			if err := hole(holes[0]); err != nil {
				return err
			}
			pos = holes[0].Position + holes[0].Length
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := segfile.Walk(frames, pos, rep.Meta.Salt, frame); err != nil {
			return err
		}
		pos = next
	}
	return ctx.Err()
}

// dumper prints frames or their records.
type dumper struct {
	*app
	out     *bufio.Writer
	meta    segfile.Meta
	frames  bool
	scratch record.Scratch
	headers []record.Header
}

func (p *dumper) frame(pos int64, h record.Head, b []byte) error {
	if p.frames {
		return p.head(pos, h)
	}
	if h.Mark() {
		return nil
	}
	if h.Void() {
		return p.note("frame at byte %d is void: %s from offset %d not stored, because the producer changed what it sent while that was written", pos, plural(h.Count, "record"), h.Base)
	}
	batch, err := record.Verify(b, p.meta.Salt, &p.scratch)
	if err != nil {
		return p.note("frame at byte %d: %v", pos, err)
	}
	for i := range batch.Len() {
		p.headers = batch.Headers(i, p.headers[:0])
		at := time.UnixMilli(batch.Timestamp(i))
		if p.json {
			err = writeRecordJSON(p.out, p.meta.ID.Range.Seq, batch.Offset(i), at, batch.Key(i), batch.Value(i), p.headers)
		} else {
			_, err = fmt.Fprintf(p.out, "%d\t%s\t%s\t%s\n", batch.Offset(i), at.UTC().Format(time.RFC3339Nano), quote(batch.Key(i)), quote(batch.Value(i)))
		}
		if err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
	}
	return nil
}

// quote shows bytes on one line; null is not the same as empty.
func quote(b []byte) string {
	if b == nil {
		return "null"
	}
	return strconv.Quote(string(b))
}

// frameReport is one frame with --json.
type frameReport struct {
	Byte     int64  `json:"byte"`
	Mark     bool   `json:"mark,omitempty"`
	Void     bool   `json:"void,omitempty"` // the records were not stored
	Lent     bool   `json:"lent,omitempty"` // written from memory of their producer
	Length   uint32 `json:"length"`
	Codec    string `json:"codec"`
	Records  uint32 `json:"records"`
	Base     uint64 `json:"base"`
	Producer string `json:"producer"`
	FirstSeq uint64 `json:"first_seq"`
	LastSeq  uint64 `json:"last_seq"`
	PrevSeq  uint64 `json:"prev_seq"`
	Durable  int64  `json:"durable_position"`
}

func (p *dumper) head(pos int64, h record.Head) error {
	r := frameReport{Byte: pos, Mark: h.Mark(), Void: h.Void(), Lent: h.Lent(), Length: h.FrameLen, Codec: h.Codec.String(), Records: h.Count, Base: h.Base,
		Producer: fmt.Sprintf("%016x", h.Producer), FirstSeq: h.FirstSeq, LastSeq: h.LastSeq, PrevSeq: h.PrevSeq, Durable: h.Durable}
	if p.json {
		return json.NewEncoder(p.out).Encode(r)
	}
	what := fmt.Sprintf("%s from %d, producer %s, sequences %d-%d after %d", plural(r.Records, "record"), r.Base, r.Producer, r.FirstSeq, r.LastSeq, r.PrevSeq)
	switch {
	case r.Mark:
		what = "mark"
	case r.Void:
		what = "void: " + what
	case r.Lent:
		what = "lent: " + what
	}
	_, err := fmt.Fprintf(p.out, "%d\t%d bytes\t%s\t%s\tdurable before: %d\n", r.Byte, r.Length, r.Codec, what, r.Durable)
	return err
}

func (p *dumper) hole(h segfile.Hole) error {
	if h.Lent {
		return p.note("frame at byte %d is damaged: %s from offset %d missing here, which reads skip: the producer changed its memory while it was written from there, or the file was damaged since", h.Position, plural(h.Records, "record"), h.Offset)
	}
	return p.note("%d bytes from byte %d cannot be read: %s from offset %d missing here", h.Length, h.Position, plural(h.Records, "record"), h.Offset)
}

// note goes to standard error, behind what was printed so far.
func (p *dumper) note(format string, args ...any) error {
	if err := p.out.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(p.err, "ringfence: "+format+"\n", args...)
	return nil
}

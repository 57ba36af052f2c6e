package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/spf13/cobra"
)

func (a *app) segmentAcceptLossCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept-loss FILE",
		Short: "Let reads skip the damaged stretches of a closed segment",
		Long: `Put the stretches of a closed segment that cannot be read on record as lost. Reads
then skip them and report what they skipped, where they failed before. The segment
file itself is not changed; the record lies beside it and can be removed again.
Do this only when no other copy of the records exists. Batches that were written from memory
of their producer (serve --shm-trusted-uids) and are damaged are skipped without it; with it,
'segment verify' takes them for known.
A server may run meanwhile; a segment that it still writes is closed first, by
'ringfence topic roll'.

A file that is missing is given up whole: all that the metadata says was in it, so no
process may have the data directory open. A file that is there but has no readable
header can be given up too, once it is moved out of the directory. Producers that send
their records again store those anew that were in it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := os.Stat(args[0]); errors.Is(err, fs.ErrNotExist) {
				return a.giveUp(cmd.Context(), args[0], yes)
			}
			return a.withSegment(args[0], false, func(d disk.Disk, name string) error { return a.acceptLoss(cmd.Context(), d, name, args[0], yes) })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (a *app) acceptLoss(ctx context.Context, d disk.Disk, name, file string, yes bool) error {
	rep, err := segfile.Verify(d, name, nil)
	if errors.Is(err, segfile.ErrNeverUsed) || err == nil && rep.Latch.State() != fence.Open && len(rep.Problems) == 0 {
		u, uerr := a.unfit(ctx, file)
		switch {
		case uerr != nil:
			return uerr
		case u != nil:
			return fmt.Errorf("%w: %s", u.err(file, err), u.next(file))
		}
	}
	switch {
	case errors.Is(err, segfile.ErrNeverUsed):
		return incomplete{fmt.Errorf("%s: there is no loss to accept: nothing is in it, and no metadata says that there was", file)}
	case err == nil && rep.Latch.State() == fence.Open && rep.Cut.Length > 0:
		return incomplete{fmt.Errorf("%s: there is no loss to accept: the segment is open, and incomplete from byte %d, as a crash leaves it; opening the data directory recovers it", file, rep.Cut.Position)}
	case errors.Is(err, segfile.ErrDamaged) && rep.FileSize == 0:
		return fmt.Errorf("%w: nothing of it can be read: %s", err, whatNext(file, rep, err))
	case err != nil && !errors.Is(err, segfile.ErrDamaged) || rep.FileSize == 0:
		return foreign(err)
	}
	if rep.Latch.State() == fence.Open && unaccepted(rep.Holes) {
		return conflict{errors.New(err.Error() + ": " + closeFirst(rep))} // its state, not the damage, is why
	}
	var records uint64
	fresh := 0
	for _, h := range rep.Holes {
		if !h.Accepted {
			records += h.Records
			fresh++
		}
	}
	if fresh == 0 {
		return a.report(holesJSON(rep.Holes), func() { a.printNoLoss(file, rep) })
	}
	if !yes {
		a.printf("%s: damaged: %s\n", file, readableText(rep))
		a.printProblems(rep.Problems)
		a.printHoles(rep.Holes)
		what := fmt.Sprintf("Give up %s for good?", plural(records, "record"))
		if records == 0 {
			what = "No record is lost. Let reads skip the damage?"
		}
		if err := a.ask(ctx, sure(what)); err != nil {
			return err
		}
	}
	before := skipped(rep.Holes)
	holes, err := segfile.AcceptLoss(d, name)
	if err != nil {
		return err
	}
	return a.report(holesJSON(holes), func() {
		if records == 0 {
			a.printf("%s: no record is lost; the damage is on record, and reads skip it from now on\n", file)
			return
		}
		if before {
			a.printf("%s: the loss of %s is on record; reads skipped them before, and do so still\n", file, plural(records, "record"))
			return
		}
		a.printf("%s: the loss of %s is on record; reads skip them from now on\n", file, plural(records, "record"))
	})
}

// giveUp accepts the loss of a file that is missing. What was in it only the metadata
// knows, so the data directory is opened.
func (a *app) giveUp(ctx context.Context, file string, yes bool) error {
	root, name, ok := segmentPath(file)
	if !ok || path.Base(root) != "log" {
		return notFound{fmt.Errorf("%s does not exist, and is not named like a segment file of a data directory, DATA_DIR/log/topics/TOPIC/RANGE-SEGMENT.seg", file)}
	}
	id, _ := segfile.ParseName(name)
	a.dataDir = filepath.Dir(filepath.Clean(root))
	return a.withEngineOr(ctx, false, "stop that process first: what was in a missing file only the metadata knows", func(ctx context.Context, e *engine.Engine) error {
		topic, s, err := findSegment(ctx, e, id)
		if err != nil {
			return err
		}
		holes := []holeReport{{Offset: s.Start, Records: s.Records, Accepted: true}}
		if s.GivenUp > 0 && s.Lost == s.GivenUp && s.Missing {
			return a.report(holes, func() { a.printf("%s: already on record: the loss of %s\n", name, plural(s.GivenUp, "record")) })
		}
		what := fmt.Sprintf("The file is missing. Give up %s of topic %s, offsets %s of range %d, for good?",
			plural(s.Records, "record"), topic, offsetsText(s.Start, s.Start+s.Records), id.Range.Seq)
		if s.Missing && !yes {
			if err := a.ask(ctx, sure(what)); err != nil {
				return err
			}
		}
		skip, err := e.AcceptLoss(ctx, topic, id.Range.Seq, id.Seq)
		if err != nil {
			return err
		}
		return a.report(holes, func() {
			a.printf("%s: the loss of %s, offsets %s, is on record; reads skip them from now on\n", name,
				plural(skip.Offsets, "record"), offsetsText(skip.From, skip.From+skip.Offsets))
		})
	})
}

// findSegment is what the metadata says of a segment, and the name of its topic.
func findSegment(ctx context.Context, e *engine.Engine, id fence.SegmentID) (string, engine.SegmentInfo, error) {
	topics, err := e.Topics(ctx)
	if err != nil {
		return "", engine.SegmentInfo{}, err
	}
	for _, t := range topics {
		if t.ID != id.Range.Topic.String() {
			continue
		}
		d, err := e.Describe(ctx, t.Name)
		if err != nil {
			return "", engine.SegmentInfo{}, err
		}
		for _, r := range d.AllRanges {
			for _, s := range r.Segments {
				if r.Seq == id.Range.Seq && s.Seq == id.Seq {
					return t.Name, s, nil
				}
			}
		}
	}
	return "", engine.SegmentInfo{}, notFound{fmt.Errorf("%s does not exist, and the metadata knows no such segment: nothing is lost", segfile.Name(id))}
}

// printNoLoss says why there is nothing to accept.
func (a *app) printNoLoss(name string, rep segfile.Report) {
	switch {
	case rep.Latch.State() == fence.Open:
		a.printf("%s: there is no loss to accept: the segment is open, and everything in it can be read\n", name)
	case len(rep.Holes) > 0:
		a.printf("%s: already on record: the loss of %s was accepted, and reads skip them\n", name, plural(acceptedRecords(rep.Holes), "record"))
	case len(rep.Problems) > 0:
		a.printf("%s: there is no loss to accept: the file is damaged, but every record can be read\n", name)
		a.printProblems(rep.Problems)
		a.printf("  next      'ringfence segment verify --data-dir DIR' opens the data directory, which writes a header, latch slot or footer again\n")
	default:
		a.printf("%s: there is no loss to accept: nothing is damaged\n", name)
	}
}

// acceptedRecords is how many records were given up.
func acceptedRecords(holes []segfile.Hole) (n uint64) {
	for _, h := range holes {
		if h.Accepted {
			n += h.Records
		}
	}
	return n
}

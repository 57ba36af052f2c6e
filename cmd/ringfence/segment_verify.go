package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/spf13/cobra"
)

func (a *app) segmentVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify [FILE...]",
		Short: "Check every byte of segment files that matters",
		Long: `Check every byte of segment files that matters: header, latch, each frame with its
payload and padding, footer. Damage is reported with file and byte and ends with
exit code 7, or with 0 if all of it is a loss that 'segment accept-loss' has put on
record: the report says accepted then. The incomplete tail of an open segment, as a crash leaves it, is no
damage and ends with 8. With several files the gravest code counts.

Without a file all those of the data directory are checked, and held against the metadata:
those that it knows and that are missing, or are not what it says, are damage too. For that the directory is opened, which
recovers and closes what a crash left open. Where another process has it open the files
are checked as they lie there, and what was missing or did not fit before 'ringfence topic
describe' says. Files that are named are checked as they lie there as well.`,
		Example: `  ringfence segment verify --data-dir /var/lib/ringfence
  ringfence segment verify /var/lib/ringfence/log/topics/*/*.seg`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.verifyDir(cmd.Context())
			}
			return a.segmentVerify(cmd.Context(), args, len(args) == 1, nil, nil)
		},
	}
}

// verifyReport is one verified file with --json.
type verifyReport struct {
	File     string          `json:"file"`
	OK       bool            `json:"ok"`
	Accepted bool            `json:"accepted"` // damaged, and all of that is an accepted loss
	State    string          `json:"state,omitempty"`
	Latch    string          `json:"latch,omitempty"`
	Records  uint64          `json:"records"`
	Frames   uint64          `json:"frames"`
	Marks    uint64          `json:"marks"`
	Voids    uint64          `json:"void_frames,omitempty"`
	Voided   uint64          `json:"void_records,omitempty"` // in them; they are not stored
	Bytes    uint64          `json:"bytes"`
	FileSize int64           `json:"file_size"`
	Digest   string          `json:"digest,omitempty"`
	Problems []problemReport `json:"problems"`
	Holes    []holeReport    `json:"holes"`
	Cut      *cutReport      `json:"cut,omitempty"`
	Lost     *holeReport     `json:"lost,omitempty"` // the metadata knows another file: all its records
	Error    string          `json:"error,omitempty"`
	ExitCode int             `json:"exit_code"`
}

type problemReport struct {
	Byte     int64  `json:"byte"`
	Reason   string `json:"reason"`
	Accepted bool   `json:"accepted"`
}

// segmentVerify verifies files, and tells of missing ones and of those that are others than
// the metadata says. If it is about one alone there may be nothing to report.
func (a *app) segmentVerify(ctx context.Context, files []string, alone bool, missing []missingFile, unfit map[string]unfitFile) error {
	reports := []verifyReport{}
	var worst error
	refused := func(err error) bool { // there is nothing to report but the error
		code := exitCode(err)
		return err != nil && alone && code != exitDamaged && code != exitIncomplete
	}
	take := func(r verifyReport, err error) {
		reports = append(reports, r)
		if err != nil && (worst == nil || graver(exitCode(err), exitCode(worst))) {
			worst = err
		}
	}
	for _, file := range files {
		rep, err := a.verifyOne(ctx, file)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		u, bad := unfit[file]
		switch {
		case a.json || refused(err):
		case bad:
			a.printUnfit(file, u, rep, err)
		default:
			a.printVerified(file, rep, err)
		}
		if bad {
			err = u.err(file, err)
		}
		r := verifyJSON(file, rep, err)
		if bad {
			r.Lost = &holeReport{Offset: u.s.Start, Records: u.s.Records}
		}
		take(r, err)
	}
	for _, m := range missing {
		if !a.json {
			a.printMissing(m)
		}
		take(m.report())
	}
	if a.json {
		if err := a.printJSON(reports); err != nil {
			return err
		}
	}
	if worst != nil && !a.json && !refused(worst) {
		return silent{exitCode(worst)} // each was explained above
	}
	return worst
}

// graver orders exit codes: damage before what is not ours, before an incomplete tail.
func graver(x, y int) bool {
	rank := map[int]int{exitDamaged: 4, exitForeign: 3, exitFailed: 2, exitNotFound: 2, exitIncomplete: 1}
	return rank[x] > rank[y]
}

// verifyOne verifies one file; the error carries the exit code.
func (a *app) verifyOne(ctx context.Context, file string) (rep segfile.Report, err error) {
	err = a.withSegment(file, true, func(d disk.Disk, name string) error {
		bar := a.progress("verify", 0, bytesText[int64])
		defer bar.end()
		var verr error
		rep, verr = segfile.Verify(d, name, func(done, total int64) error {
			bar.total = total
			bar.set(done)
			return ctx.Err()
		})
		return foreign(verr)
	})
	if err == nil && rep.Latch.State() == fence.Open && rep.Cut.Length > 0 {
		err = incomplete{fmt.Errorf("%s is open and its tail is incomplete from byte %d; opening the data directory recovers it", file, rep.Cut.Position)}
	}
	if errors.Is(err, segfile.ErrNeverUsed) {
		err = incomplete{err}
	}
	return rep, err
}

func verifyJSON(file string, rep segfile.Report, err error) verifyReport {
	r := verifyReport{
		File: file, OK: err == nil, Accepted: err == nil && len(rep.Problems) > 0, Records: rep.Records, Frames: rep.Frames, Marks: rep.Marks, Voids: rep.Voids, Voided: rep.Voided, Bytes: rep.Bytes, FileSize: rep.FileSize,
		Problems: []problemReport{}, Holes: holesJSON(rep.Holes), Cut: cutJSON(rep.Cut), ExitCode: exitCode(err),
	}
	if rep.FileSize > 0 {
		r.State, r.Latch, r.Digest = rep.State.String(), rep.Latch.State().String(), fmt.Sprintf("%016x", rep.Digest)
	}
	for _, p := range rep.Problems {
		r.Problems = append(r.Problems, problemReport{p.Byte, p.Reason, p.Accepted})
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

func (a *app) printVerified(file string, rep segfile.Report, err error) {
	switch {
	case err == nil && len(rep.Problems) > 0:
		a.printf("%s: damaged, and the loss of %s was accepted; %s can be read, digest %016x\n", file,
			plural(acceptedRecords(rep.Holes), "record"), plural(rep.Records, "record"), rep.Digest)
		a.printProblems(rep.Problems)
	case err == nil:
		a.printf("%s: ok, %s, %s in %s and %s, digest %016x\n", file, rep.Latch.State(), plural(rep.Records, "record"),
			plural(rep.Frames, "frame"), plural(rep.Marks, "mark"), rep.Digest)
	case errors.Is(err, segfile.ErrNeverUsed):
		a.printf("%s: nothing is in it: it is empty or all zeros, as a file is that was made ready and never used, or was lost\n", file)
	case exitCode(err) == exitIncomplete:
		a.printf("%s: incomplete from byte %d: %s before that are whole, digest %016x\n", file, rep.Cut.Position, plural(rep.Records, "record"), rep.Digest)
	case exitCode(err) == exitDamaged && len(rep.Problems) > 0:
		a.printf("%s: damaged: %s\n", file, readableText(rep))
		a.printProblems(rep.Problems)
	default:
		a.printf("%s: %v\n", file, err)
		a.printProblems(rep.Problems)
	}
	if rep.Voids > 0 {
		a.printf("  void      %s in %s were not stored: their producer changed them while they were written\n", plural(rep.Voided, "record"), plural(rep.Voids, "frame"))
	}
	a.printHoles(rep.Holes)
	a.printCut(rep)
	if next := whatNext(file, rep, err); next != "" {
		a.printf("  next      %s\n", next)
	}
}

// readableText is how much of a damaged file can be read.
func readableText(rep segfile.Report) string {
	var lost uint64
	for _, h := range rep.Holes {
		lost += h.Records
	}
	switch {
	case rep.FileSize == 0:
		return "nothing of it can be read"
	case len(rep.Holes) == 0:
		return fmt.Sprintf("all of its %s can be read", plural(rep.Records, "record"))
	case lost == 0:
		return fmt.Sprintf("%s can be read, and none is known to be lost", plural(rep.Records, "record"))
	}
	return fmt.Sprintf("%s can be read, %s cannot", plural(rep.Records, "record"), countText(lost))
}

// whatNext is what there is to do about a file; "" is nothing.
func whatNext(file string, rep segfile.Report, err error) string {
	const copied = "put a good copy of the file in its place while nobody has the data directory open, if there is one"
	switch {
	case errors.Is(err, segfile.ErrNeverUsed):
		return "whether there were records in it only the metadata knows: 'ringfence segment verify --data-dir DIR' says if any is lost"
	case exitCode(err) == exitIncomplete:
		return "if no process has the data directory open, open it: that sets the rest aside and closes the segment. A process that writes it may be about to write the rest"
	case err == nil && rep.Latch.State() == fence.Open:
		return "nothing: the process that writes it closes it or, if that was killed, the next one to open the data directory"
	case exitCode(err) != exitDamaged:
		return ""
	case rep.FileSize == 0:
		return copied + "; without one, move it out of the data directory: 'ringfence segment accept-loss' of its name gives up what was in it"
	case unaccepted(rep.Holes) && skipped(rep.Holes):
		return copied + "; without one it can stay: reads skip what is lost and say so. 'ringfence segment accept-loss " + file + "' puts on record that this is known"
	case unaccepted(rep.Holes) && rep.Latch.State() == fence.Open:
		return closeFirst(rep)
	case unaccepted(rep.Holes):
		return copied + "; without one, 'ringfence segment accept-loss " + file + "' lets reads skip what is lost"
	}
	return copied + "; without one it can stay: reads do not need what is damaged, and whatever opens the data directory, 'ringfence segment verify --data-dir DIR' too, writes a header, latch slot or footer again"
}

// closeFirst is what there is to do about damage in a segment that is still open.
func closeFirst(rep segfile.Report) string {
	return fmt.Sprintf("close the segment first: 'ringfence topic roll %s --server ADDRESS' where a server writes it, else whatever opens the data directory closes it; then 'ringfence segment accept-loss' of this file lets reads skip what is lost", rep.Meta.Topic)
}

// foreign adds what to do about a file that has the name and the place of a segment's, and
// is another one or none.
func foreign(err error) error {
	if errors.Is(err, segfile.ErrForeign) {
		return fmt.Errorf("%w%s", err, foreignNext)
	}
	return err
}

const foreignNext = "; a good copy, if there is one, belongs in its place; without one, move it out of the data directory: 'ringfence segment accept-loss' of its name gives up what was in it"

func unaccepted(holes []segfile.Hole) bool {
	return slices.ContainsFunc(holes, func(h segfile.Hole) bool { return !h.Accepted })
}

// skipped says whether reads skip all that is lost, whatever was accepted.
func skipped(holes []segfile.Hole) bool {
	return !slices.ContainsFunc(holes, func(h segfile.Hole) bool { return !h.Accepted && !h.Lent })
}

func (a *app) printProblems(problems []*segfile.CorruptError) {
	for _, p := range problems {
		state := ""
		if p.Accepted {
			state = " (accepted)"
		}
		a.printf("  damage    byte %d: %s%s\n", p.Byte, p.Reason, state)
	}
}

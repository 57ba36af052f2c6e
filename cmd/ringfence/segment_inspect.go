package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/spf13/cobra"
)

func (a *app) segmentInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show what a segment file is and where it ends",
		Long: `Show a segment file's header, latch and end, and what recovery would make of it.
Only as much of the file is read as that takes; 'segment verify' reads all.
Offsets and keys are given as [FIRST,NEXT): the first one that is in it, and the
first one behind it.`,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.withSegment(args[0], true, func(d disk.Disk, name string) error {
				v, err := segfile.Recover(d, name)
				if err != nil {
					return err
				}
				holes, settled, err := v.Losses()
				if err != nil {
					return err
				}
				v.Holes = holes
				blame(v)
				r := inspectJSON(v)
				r.File, r.Accepted = args[0], settled
				if err := a.report(r, func() { a.printVerdict(args[0], v, settled) }); err != nil || settled {
					return err
				}
				return stateError(v.State, v.Cut, v.Latch, v.Err(), v.Why)
			})
		},
	}
}

// blame makes a closed file a damaged one for a fault that reads get along with: nothing
// of it may look checked and whole that is not.
func blame(v *segfile.Verdict) {
	i := slices.IndexFunc(v.Faults, func(f *segfile.CorruptError) bool { return !f.Accepted })
	if i >= 0 && v.State == segfile.Clean && v.Latch.State() != fence.Open {
		v.State, v.Why = segfile.Damaged, fmt.Sprintf("byte %d: %s", v.Faults[i].Byte, v.Faults[i].Reason)
	}
}

// stateText is a file's state as far as it was looked at.
func stateText(v *segfile.Verdict) (state, why string) {
	if v.State == segfile.Clean && v.Latch.State() != fence.Open {
		return v.Latch.State().String(), "header, latch and footer are whole; the records were not read, 'ringfence segment verify' does that"
	}
	return v.State.String(), v.Why
}

// stateError is the exit of a command that reported on a file.
func stateError(state segfile.State, cut segfile.Cut, latch fence.Latch, refusal error, why string) error {
	switch {
	case state == segfile.Damaged && refusal == nil:
		return fmt.Errorf("%w: %s", segfile.ErrDamaged, why)
	case refusal != nil:
		return refusal
	case latch.State() == fence.Open && (state == segfile.Torn || cut.Length > 0):
		return incomplete{fmt.Errorf("the tail is incomplete from byte %d: %s; opening the data directory recovers the segment", cut.Position, why)}
	}
	return nil
}

// inspectReport is a segment file with --json.
type inspectReport struct {
	File     string       `json:"file"`
	State    string       `json:"state"`
	Why      string       `json:"why,omitempty"`
	Accepted bool         `json:"accepted"` // damaged, and all of that is an accepted loss
	Latch    string       `json:"latch"`
	Topic    string       `json:"topic"`
	TopicID  string       `json:"topic_id"`
	Range    uint32       `json:"range"`
	Segment  uint32       `json:"segment"`
	KeyStart uint64       `json:"key_start"`
	KeyEnd   uint64       `json:"key_end"`
	Base     uint64       `json:"base"`
	End      uint64       `json:"end"`
	Position int64        `json:"end_position"`
	Bytes    uint64       `json:"bytes"`
	Durable  int64        `json:"durable_position"`
	Created  time.Time    `json:"created"`
	Fenced   *time.Time   `json:"fenced,omitempty"`
	FenceID  string       `json:"fence_id,omitempty"`
	Salt     string       `json:"salt"`
	Writer   string       `json:"writer"`
	Producer int          `json:"producers"`
	Holes    []holeReport `json:"holes"`
	Cut      *cutReport   `json:"cut,omitempty"`
}

type holeReport struct {
	Position int64  `json:"position"`
	Length   int64  `json:"length"`
	Offset   uint64 `json:"offset"`
	Records  uint64 `json:"records"`
	Accepted bool   `json:"accepted"`
	Lent     bool   `json:"lent,omitempty"` // reads skip it, accepted or not
}

type cutReport struct {
	Position int64  `json:"position"`
	Length   int64  `json:"length"`
	Records  uint64 `json:"records"`
}

func inspectJSON(v *segfile.Verdict) inspectReport {
	m := &v.Meta
	r := inspectReport{
		File: v.Name, Latch: v.Latch.State().String(),
		Topic: m.Topic, TopicID: m.ID.Range.Topic.String(), Range: m.ID.Range.Seq, Segment: m.ID.Seq,
		KeyStart: m.Start, KeyEnd: m.End, Base: m.Base, End: v.End.Offset, Position: v.End.Position, Bytes: v.End.Bytes,
		Durable: v.Durable, Created: time.UnixMilli(m.Created).UTC(),
		Salt: fmt.Sprintf("%016x", m.Salt), Writer: fmt.Sprintf("%016x", m.Writer), Holes: holesJSON(v.Holes), Cut: cutJSON(v.Cut),
	}
	r.State, r.Why = stateText(v)
	if id, at := v.Latch.FenceID(); v.Latch.State() != fence.Open {
		t := time.UnixMilli(at).UTC()
		r.Fenced, r.FenceID = &t, fmt.Sprintf("%016x", id)
	}
	if v.Table != nil {
		r.Producer = v.Table.Len()
	}
	return r
}

func holesJSON(holes []segfile.Hole) []holeReport {
	list := make([]holeReport, 0, len(holes))
	for _, h := range holes {
		list = append(list, holeReport(h))
	}
	return list
}

func cutJSON(c segfile.Cut) *cutReport {
	if c.Length == 0 {
		return nil
	}
	r := cutReport(c)
	return &r
}

func (a *app) printVerdict(file string, v *segfile.Verdict, settled bool) {
	r := inspectJSON(v)
	a.printf("%s\n", file)
	if r.Topic != "" {
		a.printf("  segment   %d of range %d of topic %s (%s)\n", r.Segment, r.Range, r.Topic, r.TopicID)
		a.printf("  keys      %s\n", keysText(r.KeyStart, r.KeyEnd))
		a.printf("  created   %s by writer %s, salt %s\n", dateText(v.Meta.Created), r.Writer, r.Salt)
	}
	a.printf("  state     %s: %s\n", r.State, r.Why)
	if settled {
		a.printf("  loss      %s, accepted\n", plural(acceptedRecords(v.Holes), "record"))
	}
	if r.Fenced != nil {
		a.printf("  latch     %s at %s by fence %s\n", r.Latch, dateText(r.Fenced.UnixMilli()), r.FenceID)
	} else {
		a.printf("  latch     %s\n", r.Latch)
	}
	a.printf("  records   %s, offsets %s\n", countText(r.End-r.Base), offsetsText(r.Base, r.End))
	a.printf("  bytes     %s of frames, the data ends at byte %s\n", countText(r.Bytes), countText(r.Position))
	a.printf("  producers %d known at the end\n", r.Producer)
	a.printHoles(v.Holes)
	a.printCut(segfile.Report{Latch: v.Latch, Cut: v.Cut})
}

func (a *app) printHoles(holes []segfile.Hole) {
	for _, h := range holes {
		state := "reads fail there"
		switch {
		case h.Accepted:
			state = "its loss was accepted: reads skip it and say so"
		case h.Lent:
			state = "its producer's memory was written from: reads skip it and say so"
		}
		a.printf("  hole      %s from byte %d, %s from offset %d: %s\n", plural(h.Length, "byte"), h.Position, plural(h.Records, "record"), h.Offset, state)
	}
}

// printCut tells of bytes at the end that are no records: of an open file, as a crash left
// them, or of a closed one, whose recovery set them aside.
func (a *app) printCut(rep segfile.Report) {
	what := "set aside"
	if rep.Latch.State() == fence.Open {
		what = "tail     "
	}
	if c := rep.Cut; c.Length > 0 {
		a.printf("  %s %s from byte %d that nothing proves to have been durable\n", what, plural(c.Length, "byte"), c.Position)
	}
}

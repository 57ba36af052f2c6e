package segfile

import (
	"fmt"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// State is what recovery makes of a file.
type State uint8

const (
	NeverUsed State = iota // nothing was ever stored: the file may be removed
	Clean                  // everything that was ever written is whole
	Torn                   // the last flushes, which nothing proves, are not whole: they are cut off
	Damaged                // bytes that were durable are not there any more, or the header is not
	Foreign                // no segment, or not the one that the name says
	Newer                  // a later version's
)

func (s State) String() string {
	return [...]string{NeverUsed: "never used", Clean: "clean", Torn: "torn", Damaged: "damaged", Foreign: "foreign", Newer: "newer format"}[s]
}

// Verdict is what [Recover] found. Nothing in the file was changed.
type Verdict struct {
	Name  string
	Meta  Meta // when the header, or its copy, can be read
	State State
	Latch fence.Latch // open: the copy is to be fenced, at End and nowhere else
	End   fence.End

	// Table is what the range knows of its producers at End. It is nil if that is not
	// known, because the start mark or the whole file is damaged. The table of the segment
	// before, brought up to date with this one's frames, would be the same.
	Table *ProducerTable
	// Durable is the highest position that the file proves to have been durable.
	Durable int64
	// Holes are damaged stretches between frames that can be read; only in an open
	// file, or on record in a fenced one.
	Holes []Hole
	// Cut is what lies behind End and is not proved to have been durable: from one copy
	// nobody can tell here whether a write was torn or the bytes rotted later. It stays
	// in the file when the copy is fenced, between End and the footer.
	Cut Cut
	// Why says in words what made the State; Faults what is damaged and where.
	Why    string
	Faults []*CorruptError

	Start     int64 // where the frames of an open file were followed from: its last checkpoint, or the first frame
	ReadBytes int64 // read to find all this

	d        disk.Disk
	hdr      header
	slots    slots
	tally    tally
	refusal  error
	footerAt int64
}

// Err says why the file cannot be used as a segment; nil if it can.
func (v *Verdict) Err() error { return v.refusal }

// breakKind is what lies where the chain of valid frames ends.
type breakKind uint8

const (
	breakEOF    breakKind = iota // the file ends
	breakBlank                   // zeros, up to where the search ends
	breakStale                   // nothing of this segment; the file had an earlier life
	breakFooter                  // the footer of a fence whose latch was not reached
	breakOurs                    // something of this segment that is not whole
	breaks
)

// tailRow is one row of the table of what the end of an open file may look like.
type tailRow struct {
	at     breakKind
	behind bool // valid frames follow, within the bounded search
	proven bool // one of them, or the pointer, says that bytes behind the break were durable; then the search goes to the end of the file
	joined bool // the break is inside a block, and the next block starts with a frame of the very offset that is due: only padding is broken
	verd   tailVerdict
	why    string
}

type tailVerdict uint8

const (
	tailAbsurd tailVerdict = iota // no file looks like this
	tailClean
	tailCut  // cut here, and say so
	tailStep // no record is missing: go on
	tailHole // damage at rest: step over it
)

// tailRows decides what a break in the chain of frames means. A frame is acknowledged only
// after everything before it is durable, and every frame, and the pointer, say how far the
// file was durable when they were written. So if one of these durable positions lies behind
// a break, the bytes at the break were whole once, and the break is damage at rest, whatever
// it looks like, even if nothing is left behind it.
//
// Any other break lies in flushes that may never have been acknowledged. If there is anything
// of this segment at or behind it, that is cut off and reported: the last of these flushes
// may have been acknowledged after all, if the bytes rotted later.
//
// Combinations that are not in the table cannot come out of the search.
var tailRows = []tailRow{
	{breakEOF, false, false, false, tailClean, "the file ends with the last frame"},
	{breakEOF, false, true, false, tailHole, "the file ends before frames that were durable"},

	{breakBlank, false, false, false, tailClean, "only zeros follow"},
	{breakBlank, true, false, false, tailCut, "a flush is missing and later ones are there: none of them was proved durable"},
	{breakBlank, true, true, false, tailHole, "frames that were durable are zeros"},
	{breakBlank, false, true, false, tailHole, "frames that were durable are zeros, and there are none behind them"},

	{breakStale, false, false, false, tailClean, "only bytes of the file's earlier life follow"},
	{breakStale, true, false, false, tailCut, "a flush is missing and later ones are there: none of them was proved durable"},
	{breakStale, true, true, false, tailHole, "frames that were durable are gone"},
	{breakStale, false, true, false, tailHole, "frames that were durable are gone, and there are none behind them"},

	{breakFooter, false, false, false, tailClean, "a fence wrote its footer and not its latch"},
	{breakFooter, true, true, false, tailHole, "a footer lies where frames were durable"},
	{breakFooter, false, true, false, tailHole, "a footer lies where frames were durable, and there are none behind it"},

	{breakOurs, false, false, false, tailCut, "the last flush is not whole, and nothing proves that it ever was"},
	{breakOurs, true, false, false, tailCut, "a flush is not whole, and neither it nor the later ones were proved durable"},
	{breakOurs, true, true, false, tailHole, "frames that were durable are damaged"},
	{breakOurs, false, true, false, tailHole, "frames that were durable are damaged, and there are none behind them"},
	{breakOurs, true, false, true, tailStep, "the padding of a flush is not whole"},
	{breakOurs, true, true, true, tailHole, "padding that was durable is damaged"},
}

func decideTail(at breakKind, behind, proven, joined bool) (tailVerdict, string) {
	for i := range tailRows {
		if r := &tailRows[i]; r.at == at && r.behind == behind && r.proven == proven && r.joined == joined {
			return r.verd, r.why
		}
	}
	return tailAbsurd, ""
}

// Recover says what a segment file holds. What is wrong with the file is in the Verdict; an
// error only means that the file could not be read. It writes nothing, so it may be called
// again.
//
// Of a fenced file it reads latch and footer. In an open one it follows the frame headers
// from the last checkpoint to the end, and checks payloads only behind the last position
// that is proved durable: what rots before that is for reads and [Verify] to find.
func Recover(d disk.Disk, name string) (*Verdict, error) {
	o, err := openFile(d, name, true)
	if err != nil {
		return nil, err
	}
	defer o.close()
	return o.recover(d)
}

func (o *opened) recover(d disk.Disk) (v *Verdict, err error) {
	name := o.name
	v = &Verdict{Name: name, d: d, refusal: o.refuse(), Why: o.why}
	if !o.readable() {
		v.State = map[fileVerdict]State{fileLost: Damaged, fileNeverUsed: NeverUsed, fileForeign: Foreign, fileNewer: Newer}[o.verd]
		if v.State == Damaged {
			v.Faults = append(v.Faults, &CorruptError{File: name, Reason: o.why})
		}
		v.ReadBytes = o.win.read + int64(len(o.blocks))
		return v, nil
	}
	v.Meta, v.hdr, v.slots, v.State, v.Why = o.hdr.Meta, o.hdr, o.slots, Clean, ""
	if o.verd == fileRestored {
		v.damage(0, o.why+"; the copy in the start mark is used")
	}
	v.Faults = append(v.Faults, o.slots.faults(name)...)
	latch, lerr := o.slots.latch(o.hdr.Base)
	v.Latch = latch
	if latch.State() == fence.Open {
		if lerr != nil { // a torn latch, or a rotten one: the frames say where the end is
			v.Why = lerr.Error()
			v.slots = slots{sa: slotBad, sb: slotBad, sc: o.slots.sc}
		}
		err = v.walk(o)
	} else {
		err = v.fenced(o)
	}
	v.ReadBytes = o.win.read + int64(len(o.blocks))
	if err != nil {
		return nil, fmt.Errorf("segfile: recover %s: %w", name, err)
	}
	return v, nil
}

// damage notes a fault that makes the file a damaged one.
func (v *Verdict) damage(at int64, why string) {
	v.Faults = append(v.Faults, &CorruptError{File: v.Name, Byte: at, Reason: why})
	v.State = Damaged
	if v.Why == "" {
		v.Why = why
	}
}

// fenced takes what the latch and the footer say.
func (v *Verdict) fenced(o *opened) error {
	s, _ := o.slots.current()
	v.End, _ = v.Latch.End()
	v.Durable = v.End.Position
	defer func() {
		if v.Why == "" {
			v.Why = "fenced"
		}
	}()
	if v.End.Position > o.size {
		v.damage(o.size, fmt.Sprintf("the file ends here, and the segment at byte %d", v.End.Position))
		return nil
	}
	f, err := o.footer(s)
	if isRead(err) {
		return err
	}
	if err != nil {
		v.Faults = append(v.Faults, &CorruptError{File: v.Name, Byte: s.footer, Reason: err.Error()})
		if f, err = o.rebuild(s); err != nil {
			return err
		}
		if f.end != v.End {
			v.damage(s.footer, "the footer is damaged, and so are frames")
		}
	}
	v.Table, v.Holes, v.Cut = f.table, f.holes, f.cut
	if v.Table == nil {
		v.damage(DataStart, "the start mark was damaged when the file was fenced: what the range knew of its producers is not known")
	}
	for _, h := range f.holes {
		if h.Records > 0 || v.End.Offset == v.hdr.Base { // or nothing is left that says how many
			v.State, v.Why = Damaged, "holes are on record"
		}
	}
	return nil
}

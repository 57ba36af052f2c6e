package segfile

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk"
)

// Kind is what a file in the tree is, as far as its name and first blocks tell.
type Kind uint8

const (
	KindUnknown     Kind = iota // nothing of ours: report it, leave it
	KindSegment                 // a segment that can be read
	KindDamaged                 // a segment whose header cannot
	KindNeverUsed               // a segment's name, and nothing was ever stored
	KindForeign                 // a segment's name, and no segment or another one
	KindNewer                   // a later version's segment
	KindPool                    // the pool's
	KindLoss                    // the losses accepted in a segment
	KindLossPartial             // the same, half written: it may be removed
)

func (k Kind) String() string {
	return [...]string{
		KindUnknown: "unknown", KindSegment: "segment", KindDamaged: "damaged segment", KindNeverUsed: "never used",
		KindForeign: "foreign", KindNewer: "newer format", KindPool: "pool file", KindLoss: "record of losses",
		KindLossPartial: "unfinished record of losses",
	}[k]
}

// Class is what Classify says of a file.
type Class struct {
	Kind  Kind
	ID    fence.SegmentID // by its name; of a segment or its losses
	Meta  Meta            // by its header
	Latch fence.Latch     // of a segment
	Size  int64
	Why   error // what is wrong, nil when nothing is
}

// Classify says what a file is. An error means that it could not be read.
func Classify(d disk.Disk, name string) (Class, error) {
	if base, ok := isPool(name); ok {
		if _, _, ok := parsePoolName(base); ok {
			return Class{Kind: KindPool}, nil
		}
		return Class{}, nil
	}
	id, isSeg := ParseName(name)
	if !isSeg {
		if id, ok := ParseName(strings.TrimSuffix(name, lossSuffix)); ok {
			return Class{Kind: KindLoss, ID: id}, nil
		}
		if id, ok := ParseName(strings.TrimSuffix(name, lossSuffix+".tmp")); ok {
			return Class{Kind: KindLossPartial, ID: id}, nil
		}
		return Class{}, nil
	}
	o, err := openFile(d, name, true)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return Class{}, err
		}
		return Class{ID: id}, err
	}
	defer o.close()
	c := Class{ID: id, Size: o.size, Why: o.refuse()}
	switch o.verd {
	case fileLost:
		c.Kind = KindDamaged
	case fileNeverUsed:
		c.Kind = KindNeverUsed
	case fileForeign:
		c.Kind = KindForeign
	case fileNewer:
		c.Kind = KindNewer
	case fileRestored:
		c.Why = &CorruptError{File: name, Reason: o.why}
		fallthrough
	case fileUsed:
		c.Kind, c.Meta = KindSegment, o.hdr.Meta
		c.Latch, err = o.slots.latch(o.hdr.Base)
		if err != nil && c.Why == nil {
			c.Why = &CorruptError{File: name, Byte: slotA, Reason: err.Error()}
		}
	}
	return c, nil
}

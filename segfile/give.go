package segfile

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/segfile/disk"
)

// Give readies the file for its descriptor to be given to another process that may read
// the segment, which then reads all of the file, for as long as it likes. So there is to
// be nothing in it but this segment, now and later:
//
//   - Blocks behind the footer, which may have bytes of another segment that the file held
//     before, are given back first. A file of holes, with bytes that recovery set aside or
//     that was settled at a lower end is not given at all.
//   - A mark has [Pool.Recycle] remove the file, whoever runs it by then: it is not used
//     again for a segment that the other process may not read. It is emptied then: that
//     process may keep it open for as long as it likes, and would keep its blocks.
//
// errors.ErrUnsupported says that this file is not given. A crash leaves a file that is
// shorter, or not used again.
func (r *Reader) Give() error {
	no := func(why string) error {
		return fmt.Errorf("segfile: %s is not given away: %w: %s", r.name, errors.ErrUnsupported, why)
	}
	holes, err := r.Holes()
	switch {
	case err != nil:
		return err
	case len(holes) > 0 || len(r.faults) > 0 || r.cut != Cut{}:
		return no("it is damaged")
	}
	o, err := openFile(r.d, r.name, false)
	if err != nil {
		return err
	}
	defer o.close()
	if err := o.refuse(); err != nil {
		return err
	}
	g, ok := o.f.(disk.Giver)
	if !ok {
		return no("this disk has no descriptors")
	}
	s, ok := o.slots.current()
	if !ok || o.slots.decide() != latchFenced || s.end != r.end || o.hdr.Salt != r.hdr.Salt {
		return no("its latch says something else than it did")
	}
	end := alignBlock(s.footer + s.length)
	if s.footer != s.end.Position || end > o.size {
		return no("its footer is not behind its last frame")
	}
	if o.size > end {
		if err := o.f.Truncate(end); err != nil {
			return fmt.Errorf("segfile: give %s: %w", r.name, err)
		}
	}
	return g.Give()
}

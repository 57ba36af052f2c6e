package store

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// Producers is what the range knew of its producers at the end of a fenced segment: a copy
// for the caller to keep. If damage took it, that is an ErrDamaged, because an empty table
// would let repeats through.
func (s *Segment) Producers() (*segfile.ProducerTable, error) {
	r := s.reader.Load()
	if r == nil || r.Latch().State() == fence.Open {
		return nil, s.wrap(errors.New("its producers are not settled before it is fenced"))
	}
	t := r.Table()
	if t == nil {
		return nil, s.wrap(fmt.Errorf("%w: what it knew of its producers is lost with its start mark, at byte %d", ErrDamaged, segfile.DataStart))
	}
	return t.Clone(), nil
}

// Replay brings the table from before the segment up to date with the segment's frames, for
// when Producers has lost the one from its end.
func (s *Segment) Replay(t *segfile.ProducerTable) error {
	if err := s.use(); err != nil {
		return err
	}
	defer s.unuse()
	r := s.reader.Load()
	if r == nil || r.Latch().State() == fence.Open {
		return s.wrap(errors.New("its frames are not settled before it is fenced"))
	}
	if err := r.Replay(t); err != nil {
		if errors.Is(err, segfile.ErrDamaged) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		s.note(err)
		return s.wrap(err)
	}
	return nil
}

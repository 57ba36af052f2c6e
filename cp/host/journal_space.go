package host

import (
	"errors"
	"fmt"
)

// setLimit finds how far frames may go. What lies in the active slot must fit the
// other one as a checkpoint, or a full disk could stop the journal; only a frame
// that was made room for goes further. The caller owns the journal.
func (j *journal) setLimit(least int64) error {
	sizes, err := j.sizes()
	if err != nil {
		return err
	}
	j.limit = max(min(sizes[0], sizes[1])-slack, least)
	j.mu.Lock()
	j.usable, j.rotations = j.limit, j.generation
	j.mu.Unlock()
	return nil
}

func (j *journal) sizes() (sizes [2]int64, err error) {
	for i := range sizes {
		if sizes[i], err = j.slots[i].Size(); err != nil {
			return sizes, fmt.Errorf("journal: %s: %w", j.name[i], err)
		}
	}
	return sizes, nil
}

// fit makes a slot at least need bytes large, better much larger. The caller owns
// the journal.
func (j *journal) fit(slot int, need int64) error {
	sizes, err := j.sizes()
	if err != nil {
		return err
	}
	if need > slotMax {
		return fmt.Errorf("journal: %s: %d bytes of live state, the most is %d", j.name[slot], need, int64(slotMax))
	}
	have := sizes[slot]
	want := min(max(2*sizes[1-slot], slotMin), slotWant)
	want = max(want, blocks(int(4*need)))
	if have > 4*want { // it was needed once
		if err := j.slots[slot].Truncate(want); err != nil {
			return fmt.Errorf("journal: %s: shrinking to %d bytes: %w", j.name[slot], want, err)
		}
		return nil
	}
	if have >= want {
		j.setCramped(nil)
		return nil
	}
	err = grow(j.slots[slot], have, want)
	if err == nil {
		j.setCramped(nil)
		return nil
	}
	if !outOfSpace(err) {
		return fmt.Errorf("journal: %s: growing to %d bytes: %w", j.name[slot], want, err)
	}
	err = fmt.Errorf("%w: %s cannot grow from %d to %d bytes", ErrNoSpace, j.name[slot], have, want)
	j.setCramped(err)
	if have >= need || grow(j.slots[slot], have, blocks(int(need))) == nil {
		return nil
	}
	return err
}

func (j *journal) setCramped(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if (err == nil) != (j.cramped == nil) {
		if err != nil {
			j.log.Warn("disk full: metadata journal cannot grow", "err", err)
		} else {
			j.log.Info("metadata journal has room again")
		}
	}
	j.cramped = err
}

func (j *journal) setStuck(stuck bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stuck = stuck
}

// grow writes zeros from have to want, so that later writes take no new blocks.
// What it could not finish it gives back. A slot that was cut somewhere in a block
// loses what is left of that one, but not its header: it holds an older generation.
func grow(f slotFile, have, want int64) error {
	start := have / block * block
	if start == 0 && have > 0 {
		start = block
	}
	zeros := make([]byte, min(want-start, 1<<20))
	for pos := start; pos < want; pos += int64(len(zeros)) {
		if err := f.WriteAt(zeros[:min(int64(len(zeros)), want-pos)], pos); err != nil {
			return errors.Join(err, f.Truncate(have))
		}
	}
	return nil
}

// room says whether a command of n bytes may be proposed: nil, or an ErrNoSpace
// once the slots cannot grow and are filling up. Commands that give space back may
// go further.
func (j *journal) room(n int, frees bool) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	if j.cramped == nil {
		return nil
	}
	limit := j.usable / 2
	if frees {
		limit = j.usable * 3 / 4
	}
	if !j.stuck && int64(j.image.bytes()+n) < limit {
		return nil
	}
	return j.cramped
}

// waiting says whether a save waits for space.
func (j *journal) waiting() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.stuck
}

// even grows the spare slot to the size of the active one, or tries to when space
// had run out.
func (j *journal) even(need int64, cramped bool) error {
	sizes, err := j.sizes()
	if err != nil {
		return err
	}
	spare := 1 - j.active
	if !cramped && sizes[spare] >= sizes[j.active] {
		return nil
	}
	if err := j.fit(spare, need); err != nil && !errors.Is(err, ErrNoSpace) {
		return err
	}
	return j.setLimit(j.pos)
}

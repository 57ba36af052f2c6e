package host

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
)

// slotState is what a slot's header says.
type slotState uint8

const (
	slotNew   slotState = iota // zeros: never completed a generation
	slotValid                  // a generation was completed here
	slotBad                    // neither
)

// choose is the decision table of recovery: which slot is the journal. A header is
// written last and lies in one sector, so a crash leaves the old one or the new
// one; a header that is neither was damaged later, and whether it was the newer one
// cannot be known.
func choose(state [2]slotState, generation [2]uint64) (active int, err error) {
	switch state {
	case [2]slotState{slotNew, slotNew}:
		return -1, nil // never formed
	case [2]slotState{slotValid, slotNew}:
		active = 0
	case [2]slotState{slotNew, slotValid}:
		active = 1
	case [2]slotState{slotValid, slotValid}:
		if generation[1] > generation[0] {
			active = 1
		}
		if generation[active] != generation[1-active]+1 {
			return 0, fmt.Errorf("generations %d and %d do not follow each other", generation[0], generation[1])
		}
		return active, nil
	default:
		return 0, errors.New("a slot header is damaged")
	}
	// The first two generations are written before anything is answered.
	if generation[active] != 1 {
		return 0, fmt.Errorf("it was emptied or removed: the other slot is of generation %d, which is never alone", generation[active])
	}
	return active, nil
}

// openJournal recovers a journal from its two slots, or forms one if neither was
// ever used and form is set. next judges what was found and numbers this start. The
// journal goes on in a new generation: nothing is ever written behind what may be
// torn.
func openJournal(slots [2]slotFile, names [2]string, disk [16]byte, form bool, next func(last slotHeader) (uint64, error), log *slog.Logger) (*journal, error) {
	j := &journal{
		log: log, slots: slots, name: names, disk: disk,
		stop: make(chan struct{}), next: newBatch(), image: image{},
	}
	j.idle = sync.NewCond(&j.mu)

	var state [2]slotState
	var headers [2]slotHeader
	var why [2]error
	for i := range slots {
		headers[i], why[i] = readSlotHeader(slots[i])
		switch {
		case why[i] == nil:
			state[i] = slotValid
		case errors.Is(why[i], errNeverUsed):
			state[i] = slotNew
		case errors.Is(why[i], ErrNewer):
			return nil, fmt.Errorf("%s: %w", names[i], why[i])
		default:
			state[i] = slotBad
		}
	}
	active, err := choose(state, [2]uint64{headers[0].generation, headers[1].generation})
	if err != nil {
		bad := 0
		switch {
		case state[0] == slotBad || state[1] == slotBad:
			if state[1] == slotBad {
				bad = 1
			}
			err = fmt.Errorf("%w: %w", err, why[bad])
		case state[1] == slotNew || state[0] != slotNew && headers[1].generation < headers[0].generation:
			bad = 1 // emptied, or the older one
		}
		return nil, &DamageError{File: names[bad], Reason: err.Error()}
	}
	var last slotHeader
	if active < 0 {
		if !form {
			return nil, ErrWiped
		}
		j.active = 1 // so that the first generation goes into slot 0
	} else {
		last = headers[active]
		j.active, j.generation, j.salt = active, last.generation, last.salt
		if err := j.replay(last); err != nil {
			return nil, err
		}
	}
	if len(j.image) == 0 && !form {
		return nil, ErrWiped // what followed the first generation is gone
	}
	if j.start, err = next(last); err != nil {
		return nil, err
	}
	if err := j.tryRotate(0); err != nil {
		return nil, err
	}
	if active < 0 {
		// From now on a slot that is empty was emptied.
		if err := j.tryRotate(0); err != nil {
			return nil, err
		}
	}
	if err := j.even(slack, false); err != nil {
		return nil, err
	}
	if active < 0 && j.cramped != nil {
		return nil, j.cramped // the first saves would wait for space
	}
	return j, nil
}

func readSlotHeader(f slotFile) (slotHeader, error) {
	b := make([]byte, block)
	if n, err := f.ReadAt(b, 0); errors.Is(err, io.EOF) {
		if zero(b[:n]) {
			return slotHeader{}, errNeverUsed
		}
	} else if err != nil {
		return slotHeader{}, err
	}
	return decodeSlotHeader(b)
}

// replay rebuilds the image from the active slot and refuses damage that a crash
// cannot have caused.
func (j *journal) replay(h slotHeader) error {
	f, name := j.slots[j.active], j.name[j.active]
	size, err := f.Size()
	if err != nil {
		return fmt.Errorf("journal: %s: %w", name, err)
	}
	if made := int64(h.blocks) * block; size < made {
		return &DamageError{File: name, Byte: size, Reason: fmt.Sprintf("the file ends here, and was %d bytes long when it was begun", made)}
	}
	data := make([]byte, blocks(int(size)))
	if n, err := f.ReadAt(data[:size], 0); err != nil && !(errors.Is(err, io.EOF) && int64(n) == size) {
		return fmt.Errorf("journal: %s: %w", name, err)
	}
	j.pos, j.seq = block, 0
	complete := false
	for {
		fr, n, ok := frameAt(data, j.pos, j.salt)
		if !ok || fr.seq != j.seq+1 {
			break
		}
		if complete != (fr.kind == kindRecords || fr.kind == kindMark) {
			return &DamageError{File: name, Byte: j.pos, Reason: "frame out of place"}
		}
		complete = complete || fr.kind == kindCheckpointEnd
		if err := j.image.load(fr.payload); err != nil {
			return &DamageError{File: name, Byte: j.pos, Reason: err.Error()}
		}
		j.pos += n
		j.seq = fr.seq
	}
	if !complete {
		return &DamageError{File: name, Byte: j.pos, Reason: "the checkpoint is incomplete although its header was written after it"}
	}
	// A frame is written only after the one before it is durable. One that follows
	// the break proves that what is broken had been whole.
	for pos := j.pos + block; pos < size; pos += block {
		if fr, _, ok := frameAt(data, pos, j.salt); ok && fr.seq > j.seq {
			return &DamageError{File: name, Byte: j.pos, Reason: fmt.Sprintf("unreadable, but an intact frame follows at byte %d", pos)}
		}
	}
	if err := j.image.check(); err != nil {
		return &DamageError{File: name, Byte: j.pos, Reason: err.Error()}
	}
	if j.pos < size && !zero(data[j.pos:j.pos+block]) {
		j.log.Debug("metadata journal ends in unfinished or older bytes", "file", name, "byte", j.pos)
	}
	return nil
}

// frameAt reads the frame at pos and returns its length in whole blocks.
func frameAt(data []byte, pos int64, salt uint64) (frame, int64, bool) {
	if pos+frameHeaderLen > int64(len(data)) {
		return frame{}, 0, false
	}
	n, ok := frameLen(data[pos:])
	if !ok || pos+int64(n) > int64(len(data)) {
		return frame{}, 0, false
	}
	fr, ok := decodeFrame(data[pos:pos+int64(n)], salt)
	return fr, blocks(n), ok
}

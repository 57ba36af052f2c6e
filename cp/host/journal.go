package host

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// slotFile is the little that a journal asks of a file. WriteAt takes whole blocks
// and returns when they are durable.
type slotFile interface {
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) error
	Truncate(size int64) error
	Size() (int64, error)
	Close() error
}

// journal is the durable memory of all Raft groups of a node: what dragonboat calls
// a log DB. It is made for small state on a device whose flush is what costs:
//
//   - One save is one durable write of whole blocks into blocks that were written
//     before, so it touches no file system metadata. Saves that arrive while one is
//     under way share the next write.
//   - The journal lies in two files, its slots. When a slot is full, the other one
//     takes a checkpoint of the live state and becomes the journal; its header is
//     written last, so that a crash leaves the old slot in charge. Snapshots keep the
//     live state small.
//   - Both slots' blocks are taken in advance. A full disk therefore stops no save;
//     only a live state that outgrows the slots needs space, and [journal.room]
//     turns new work away before that.
//   - Frames are written strictly one after another. A valid frame therefore proves
//     that everything before it was durable: damage in front of one is corruption
//     and refused. Damage of the last frame cannot be told from a torn write; a mark
//     behind it, written in idle moments and at close, proves that one too.
//
// A failed write ends the journal: nothing is known about those blocks, so every
// later save fails with the same error.
type journal struct {
	log   *slog.Logger
	slots [2]slotFile // set by open
	name  [2]string   // paths, for messages

	stop chan struct{} // closed by Close: ends waiting for space

	mu        sync.Mutex // guards all that follows; never held across I/O
	idle      *sync.Cond // signalled when flushing ends
	flushing  bool       // one goroutine owns the fields of the second group
	next      *batch     // collects saves for the next flush
	image     image      // what is durable
	failed    error      // the first write error, or ErrClosed
	cramped   error      // why the slots could not grow; nil when they could
	stuck     bool       // a save waits for space
	usable    int64      // limit, for those who do not own the journal
	rotations uint64     // generation, likewise
	written   uint64     // frames, ever
	marked    uint64     // value of written after the last mark
	seen      uint64     // value of written at the last maintain

	// Owned by whoever set flushing.
	active     int   // slot in charge
	limit      int64 // frames end before it: what is in this slot must fit the other one
	pos        int64 // where the next frame goes
	seq        uint64
	generation uint64
	salt       uint64
	start      uint64
	disk       [16]byte
	scratch    []byte // frame under construction
}

// batch is what one flush makes durable.
type batch struct {
	payload []byte
	ops     []op
	led     bool // somebody will flush it
	done    chan struct{}
	err     error // valid once done is closed
}

const (
	slotMin  = 1 << 20  // a fresh journal
	slotWant = 8 << 20  // a busy one grows up to this, however little is alive
	slotMax  = 2 << 30  // no live state may need more
	slack    = 64 << 10 // room kept behind a checkpoint
	part     = 1 << 20  // payload of one checkpoint frame
)

// commit makes ops durable and then part of the image.
func (j *journal) commit(ops ...op) error {
	j.mu.Lock()
	if j.failed != nil {
		defer j.mu.Unlock()
		return j.failed
	}
	b := j.next
	for i := range ops {
		b.payload = ops[i].append(b.payload)
	}
	b.ops = append(b.ops, ops...)
	if b.led {
		j.mu.Unlock()
		<-b.done
		return b.err
	}
	b.led = true
	j.own()
	j.next = newBatch()
	j.mu.Unlock()

	err := j.flush(kindRecords, b.payload)

	j.mu.Lock()
	for i := 0; i < len(b.ops) && err == nil; i++ {
		err = j.image.apply(&b.ops[i])
	}
	b.err = j.disown(err)
	j.mu.Unlock()
	close(b.done)
	return b.err
}

func newBatch() *batch { return &batch{done: make(chan struct{})} }

// own waits for the flush under way and takes its place. The caller holds mu.
func (j *journal) own() {
	for j.flushing {
		j.idle.Wait()
	}
	j.flushing = true
}

// disown ends what own began. An error ends the journal, and comes back as what
// everybody is told from now on. The caller holds mu.
func (j *journal) disown(err error) error {
	j.flushing = false
	j.idle.Broadcast()
	if err == nil {
		return nil
	}
	if j.failed == nil {
		j.failed = fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return j.failed
}

// flush writes one frame durably, after moving to the other slot if it does not
// fit. The caller owns the journal.
func (j *journal) flush(kind frameKind, payload []byte) error {
	j.mu.Lock()
	failed := j.failed
	j.mu.Unlock()
	if failed != nil {
		return failed
	}
	if len(payload) > maxFrame {
		return fmt.Errorf("journal: %d bytes in one save, the most is %d", len(payload), maxFrame)
	}
	need := blocks(frameHeaderLen + len(payload))
	if j.pos+need > j.limit {
		if err := j.rotate(need); err != nil {
			return err
		}
	}
	j.scratch = append(beginFrame(j.scratch), payload...)
	j.scratch = endFrame(j.scratch, kind, j.seq+1, j.salt)
	if err := j.slots[j.active].WriteAt(j.scratch, j.pos); err != nil {
		return fmt.Errorf("journal: %s: write at byte %d: %w", j.name[j.active], j.pos, err)
	}
	j.pos += need
	j.seq++
	if cap(j.scratch) > part {
		j.scratch = nil
	}
	j.mu.Lock()
	j.written++
	j.mu.Unlock()
	return nil
}

// rotate starts a generation in the other slot with room for need bytes. It waits
// for space if the live state outgrew the slots and the disk is full, until space
// returns or the journal closes. The caller owns the journal.
func (j *journal) rotate(need int64) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := j.tryRotate(need)
		j.setStuck(errors.Is(err, ErrNoSpace))
		if !errors.Is(err, ErrNoSpace) {
			return err
		}
		j.log.Warn("metadata journal waits for disk space", "file", j.name[1-j.active], "err", err)
		select {
		case <-j.stop:
			return err
		case <-time.After(wait):
		}
	}
}

func (j *journal) tryRotate(need int64) error {
	spare := 1 - j.active
	salt := newSalt()

	j.mu.Lock()
	frames := j.checkpointFrames(salt)
	j.mu.Unlock()
	used := int64(block)
	for _, f := range frames {
		used += int64(len(f))
	}
	if err := j.fit(spare, used+need+slack); err != nil {
		return err
	}

	// The header goes last: until it is there, the other slot is the journal.
	pos := int64(block)
	for _, f := range frames {
		if err := j.slots[spare].WriteAt(f, pos); err != nil {
			return fmt.Errorf("journal: %s: write at byte %d: %w", j.name[spare], pos, err)
		}
		pos += int64(len(f))
	}
	size, err := j.slots[spare].Size()
	if err != nil {
		return fmt.Errorf("journal: %s: %w", j.name[spare], err)
	}
	h := slotHeader{
		version: journalVersion, blocks: uint32(size / block),
		generation: j.generation + 1, salt: salt, start: j.start, disk: j.disk,
	}
	if err := j.slots[spare].WriteAt(h.encode(), 0); err != nil {
		return fmt.Errorf("journal: %s: write at byte 0: %w", j.name[spare], err)
	}
	j.active, j.pos = spare, pos
	j.generation, j.salt, j.seq = h.generation, salt, uint64(len(frames))
	return j.setLimit(pos + need)
}

// checkpointFrames encodes the live state. The caller holds mu and owns the journal.
func (j *journal) checkpointFrames(salt uint64) (frames [][]byte) {
	f := beginFrame(nil)
	ops := j.image.checkpointOps()
	for i := range ops {
		f = ops[i].append(f)
		if len(f) >= part && i < len(ops)-1 {
			frames = append(frames, endFrame(f, kindCheckpoint, uint64(len(frames)+1), salt))
			f = beginFrame(nil)
		}
	}
	return append(frames, endFrame(f, kindCheckpointEnd, uint64(len(frames)+1), salt))
}

// bytesOf is what a replica's log holds.
func (j *journal) bytesOf(key replicaKey) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.image[key]; r != nil {
		return int64(r.bytes)
	}
	return 0
}

// maintain is called now and then and returns the error that ended the journal, if
// one did. When nothing was saved since the last time it
// writes a mark, which makes later damage of the last save detectable, and evens
// out the slots. When the disk was full it looks whether there is space again.
func (j *journal) maintain() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	quiet := j.written == j.seen
	j.seen = j.written
	if j.failed != nil || !quiet && j.cramped == nil || j.flushing {
		return j.failed
	}
	j.own()
	need := int64(2*j.image.bytes()) + slack
	mark := quiet && j.written != j.marked
	cramped := j.cramped != nil
	j.mu.Unlock()
	var err error
	if mark {
		err = j.flush(kindMark, nil)
	}
	if err == nil {
		err = j.even(need, cramped)
	}
	j.mu.Lock()
	if mark {
		j.marked = j.written
		j.seen = j.written
	}
	return j.disown(err)
}

// Close ends the journal; saves fail from now on.
func (j *journal) Close() error {
	close(j.stop)
	j.mu.Lock()
	j.own()
	if j.failed == nil {
		j.mu.Unlock()
		if j.written != j.marked {
			if err := j.flush(kindMark, nil); err != nil {
				j.log.Warn("metadata journal: last mark not written", "err", err)
			}
		}
		j.mu.Lock()
		j.failed = ErrClosed
	}
	_ = j.disown(nil) // there is nothing to give away
	j.mu.Unlock()
	return errors.Join(j.slots[0].Close(), j.slots[1].Close())
}

func newSalt() uint64 {
	var b [8]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint64(b[:])
}

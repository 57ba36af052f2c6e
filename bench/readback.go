package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/engine"
)

// ErrReadBack: the engine gave back something else than what it had acknowledged.
var ErrReadBack = errors.New("bench: read back something else than was stored")

// ReadBack reads what the range still holds and checks that each worker's records
// are there in order, none missing between the first that retention left and the
// last that was acknowledged. Retention may remove more while it reads: what it says
// it removed is no loss.
func (r *Run) ReadBack(ctx context.Context) (string, error) {
	c, err := r.reader()
	if err != nil {
		return "", err
	}
	defer c.Close()
	b := newReadBack(len(r.seqs))
	for {
		page, err := c.Fetch(1 << 16)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return "", fmt.Errorf("bench: reading back: %w", err)
		}
		if err := b.take(page); err != nil {
			return "", fmt.Errorf("%w: record %d: %w", ErrReadBack, b.n, err)
		}
		if page.CaughtUp {
			break
		}
	}
	if err := b.end(r.seqs); err != nil {
		return "", fmt.Errorf("%w: %w", ErrReadBack, err)
	}
	return fmt.Sprintf("%d records, in order, up to the last", b.n), nil
}

// reader reads the topic from its start: through a client where the engine is another
// process's.
func (r *Run) reader() (reader, error) {
	o := engine.ConsumerOptions{Topic: topic, From: engine.FromStart()}
	if r.e == nil {
		return r.net.clients[0].NewConsumer(o)
	}
	return r.e.NewConsumer(o)
}

type reader interface {
	Fetch(records int) (engine.Page, error)
	Close() error
}

// finish closes the run, and reads back first what it stored unless something else went
// wrong already.
func (r *Run) finish(ctx context.Context, err error) error {
	if err == nil {
		_, err = r.ReadBack(ctx)
	}
	return errors.Join(err, r.Close())
}

// finish is that of a run whose engine is another process's, if it has one.
func (a *apart) finish(ctx context.Context, err error) error {
	if err == nil && a.stores {
		_, err = a.ReadBack(ctx)
	}
	return errors.Join(err, a.close())
}

// readBack is how far reading back came.
type readBack struct {
	n       uint64   // records read
	next    uint64   // offset that has to come
	removed bool     // retention removed what was before
	last    []uint64 // of each worker, since the last removal; 0 before the first
	floor   []uint64 // the same before it
}

func newReadBack(workers int) *readBack {
	return &readBack{last: make([]uint64, workers), floor: make([]uint64, workers)}
}

func (b *readBack) take(page engine.Page) error {
	for _, skip := range page.Skips {
		if skip.Damaged || skip.From != b.next && b.n > 0 {
			return fmt.Errorf("%d offsets from %d on were skipped (damaged: %t), after offset %d", skip.Offsets, skip.From, skip.Damaged, b.next)
		}
		b.jump(skip.From + skip.Offsets)
	}
	for i := range page.Records {
		rec := &page.Records[i]
		if b.n == 0 && rec.Offset > b.next {
			b.jump(rec.Offset) // it began where retention had come to
		}
		if rec.Offset != b.next {
			return fmt.Errorf("offset %d where %d was due", rec.Offset, b.next)
		}
		if err := checkNext(b.last, rec.Key); err != nil {
			return err
		}
		if worker := binary.BigEndian.Uint64(rec.Key); b.last[worker] <= b.floor[worker] {
			return fmt.Errorf("record %d of worker %d after %d", b.last[worker], worker, b.floor[worker])
		}
		b.n++
		b.next++
	}
	return nil
}

// jump goes on behind what retention removed, where each worker may be further.
func (b *readBack) jump(to uint64) {
	b.next, b.removed = to, true
	for worker, seq := range b.last {
		b.floor[worker] = max(b.floor[worker], seq)
		b.last[worker] = 0
	}
}

// end checks that everything up to the last was read or removed.
func (b *readBack) end(seqs []lastSeq) error {
	var sum uint64
	for worker := range seqs {
		seq := seqs[worker].n
		sum += seq
		if b.last[worker] == 0 && b.removed {
			continue // all of this worker's were removed
		}
		if b.last[worker] != seq {
			return fmt.Errorf("worker %d ends at record %d, %d were acknowledged", worker, b.last[worker], seq)
		}
	}
	if b.next != sum {
		return fmt.Errorf("the range ends at offset %d, %d records were acknowledged", b.next, sum)
	}
	return nil
}

func checkNext(last []uint64, key []byte) error {
	if len(key) != keySize {
		return fmt.Errorf("a key of %d bytes", len(key))
	}
	worker, seq := binary.BigEndian.Uint64(key), binary.BigEndian.Uint64(key[8:])
	if worker >= uint64(len(last)) {
		return fmt.Errorf("from worker %d, there are %d", worker, len(last))
	}
	if before := last[worker]; before != 0 && seq != before+1 {
		return fmt.Errorf("record %d of worker %d after %d", seq, worker, before)
	}
	last[worker] = seq
	return nil
}

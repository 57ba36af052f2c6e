package bench

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/ringfence/ringfence/engine"
)

// ReadBack reads what the range still holds and checks that each worker's records
// are there in order, none missing between the first that retention left and the
// last that was acknowledged.
func (r *Run) ReadBack(ctx context.Context) (string, error) {
	c, err := r.e.NewConsumer(engine.ConsumerOptions{Topic: topic, From: engine.FromStart()})
	if err != nil {
		return "", err
	}
	defer c.Close()
	last := make([]uint64, len(r.seqs))
	var n int64
	for {
		page, err := c.Fetch(1 << 16)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return "", fmt.Errorf("bench: reading back: %w", err)
		}
		for i := range page.Records {
			if err := checkNext(last, page.Records[i].Key); err != nil {
				return "", fmt.Errorf("bench: reading back: record %d: %w", n, err)
			}
			n++
		}
		if page.CaughtUp {
			break
		}
	}
	for worker, seq := range last {
		if seq != r.seqs[worker] {
			return "", fmt.Errorf("bench: reading back: worker %d ends at record %d, %d were acknowledged", worker, seq, r.seqs[worker])
		}
	}
	return fmt.Sprintf("%d records, in order, up to the last", n), nil
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

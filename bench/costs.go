package bench

import (
	"fmt"
	"time"

	"github.com/ringfence/ringfence/segfile/record"
	"github.com/zeebo/xxh3"
)

// Costs is the CPU in seconds that a GiB of payload takes for work that fio does
// not do and no engine can leave out: putting the records into the batch, hashing
// them once, and walking the batch's structure.
type Costs struct {
	Copy   float64 `json:"copy_s_per_gib"`
	Hash   float64 `json:"hash_s_per_gib"`
	Verify float64 `json:"verify_s_per_gib"` // without the hash
}

// Sum is all of it.
func (c Costs) Sum() float64 { return c.Copy + c.Hash + c.Verify }

// MeasureCosts builds and verifies batches of the shape on one core, over memory
// that is larger than the caches.
func MeasureCosts(recordSize, batchBytes int) (Costs, error) {
	const batches = 128
	mem, free, err := bigBuffer(batches * batchBytes)
	if err != nil {
		return Costs{}, err
	}
	defer free()
	var (
		c       Costs
		text    = benchText()
		frames  [][]byte
		payload int
		build   record.Builder
		scratch record.Scratch
		at      int
	)
	began := time.Now()
	for i := range batches {
		build.Reset(mem[i*batchBytes:(i+1)*batchBytes:(i+1)*batchBytes], 1)
		for seq := uint64(1); ; seq++ {
			key, value, err := build.Reserve(keySize, recordSize-keySize, nil, 1)
			if err != nil {
				break // full
			}
			if at+len(value) > len(text) {
				at = 0
			}
			copy(value, text[at:])
			at += len(value)
			key[0] = byte(seq)
			if err := build.Commit(seq); err != nil {
				return Costs{}, fmt.Errorf("bench: measuring costs: %w", err)
			}
			payload += recordSize
		}
		frame, err := build.Finish(0)
		if err != nil {
			return Costs{}, fmt.Errorf("bench: measuring costs: %w", err)
		}
		frames = append(frames, frame)
	}
	built := time.Since(began)
	var sum uint64
	hash := clock(func() {
		for _, f := range frames {
			sum += xxh3.Hash(f)
		}
	})
	var failed error
	verify := clock(func() {
		for _, f := range frames {
			b, err := record.Verify(f, 0, &scratch)
			if err != nil {
				failed = err
			}
			sum += uint64(b.Len())
		}
	})
	if failed != nil || sum == 0 {
		return Costs{}, fmt.Errorf("bench: measuring costs: batches that were just built do not verify: %w", failed)
	}
	gib := float64(payload) / (1 << 30)
	// Building hashes too, in Finish; what is left is the copy.
	c.Hash = hash.Seconds() / gib
	c.Copy = max(0, built.Seconds()/gib-c.Hash)
	c.Verify = max(0, verify.Seconds()/gib-c.Hash)
	return c, nil
}

func clock(f func()) time.Duration {
	began := time.Now()
	f()
	return time.Since(began)
}

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/api"
)

// The records of a topic with several ranges, gathered by range and not.

const (
	rangesOfRow = 8
	apartID     = 77 // of a producer whose batches the server takes apart, for it has a name
)

// tcpRanges stores keyed records one by one in a topic of several ranges: by a producer
// that gathers by range, and by one whose batches have records of all of them.
func tcpRanges(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
	run, err := s.start(ctx, dir, Append{RecordSize: 100, BatchBytes: 256 << 10, InFlight: 5, Workers: 1, Over: OverTCP})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, run.Close()) }()
	for seq := range uint32(rangesOfRow - 1) { // 0 into 1 and 2, these into 3 to 6, ...
		if _, _, err := run.e.SplitRange(ctx, topic, seq); err != nil {
			return nil, err
		}
	}
	var stored uint64
	for i := range s.Runs {
		apart, err := run.stream(ctx, apartID+uint64(i))
		if err != nil {
			return samples, err
		}
		routed, err := run.stream(ctx, 0)
		if err != nil {
			return samples, err
		}
		stored += apart.records + routed.records
		s.Say("    run %d: %s against %s", i+1, Figure(routed.perSecond()), Figure(apart.perSecond()))
		samples = append(samples, Sample{Engine: routed.perSecond(), Floor: apart.perSecond(), Ratio: routed.perSecond() / apart.perSecond(), Notes: map[string]float64{
			"us CPU/record": routed.cpuPerRecord(), "us CPU/record, taken apart": apart.cpuPerRecord()}})
	}
	d, err := run.e.Describe(ctx, topic)
	if err == nil && d.Records != stored {
		err = fmt.Errorf("bench: %d records are there, %d were acknowledged", d.Records, stored)
	}
	return samples, err
}

// streamed is what a stream of records came to.
type streamed struct {
	records   uint64
	took, cpu time.Duration
}

func (s streamed) perSecond() float64    { return float64(s.records) / s.took.Seconds() }
func (s streamed) cpuPerRecord() float64 { return micros(s.cpu) / float64(s.records) }

// stream appends keyed records one by one over the network for a while; with id the
// producer has a name.
func (r *Run) stream(ctx context.Context, id uint64) (out streamed, err error) {
	p, err := r.net.clients[0].NewProducer(api.ProducerOptions{Topic: topic, ID: id})
	if err != nil {
		return out, err
	}
	var failed atomic.Pointer[error]
	var acked atomic.Uint64
	done := func(_ api.Placement, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		} else {
			acked.Add(1)
		}
	}
	value := r.text[:r.w.RecordSize-keySize]
	var key [keySize]byte
	start, cpu := time.Now(), cpuTime()
	for n := uint64(0); failed.Load() == nil; n++ {
		if n%256 == 0 && time.Since(start).Seconds() > r.w.Seconds {
			break
		}
		binary.BigEndian.PutUint64(key[8:], n)
		if err := p.Append(ctx, api.Record{Key: key[:], Value: value}, done); err != nil {
			return out, errors.Join(err, p.Close(ctx))
		}
	}
	err = p.Close(ctx)
	if e := failed.Load(); e != nil {
		err = errors.Join(*e, err)
	}
	return streamed{acked.Load(), time.Since(start), cpuTime() - cpu}, err
}

package record

import "sync"

// Trim builds a frame of those records of b that keep wants, in dst where that is
// large enough: what remains of a batch that was stored in part, or one range's
// share of a batch that lies across several. Producer, sequences and times stay;
// prevSeq is what the producer sent to the range before. The frame is plain,
// whatever b was, and still to be stamped. Without a record left it is ErrEmpty.
//
// keep is asked once for each record, in order. dst does not overlap b.
func Trim(dst []byte, b Batch, prevSeq uint64, keep func(i int) bool) ([]byte, error) {
	t := trimmers.Get().(*trimmer)
	defer func() {
		t.Reset(nil, 0)
		trimmers.Put(t)
	}()
	buf, bound := dst, trimSize(b.Len(), len(b.data), b.set())
	if cap(buf) < bound {
		t.buf = sized(t.buf, bound)
		buf = t.buf
	}
	t.Reset(buf[:bound], b.Head.Producer)
	for i := range b.Len() {
		if !keep(i) {
			continue
		}
		t.headers = b.Headers(i, t.headers[:0])
		r := Record{Key: b.Key(i), Value: b.Value(i), Headers: t.headers, Timestamp: b.Timestamp(i)}
		if err := t.Add(&r, b.Seq(i)); err != nil {
			return nil, err
		}
	}
	frame, err := t.Finish(prevSeq)
	if err != nil || cap(dst) >= bound {
		return frame, err
	}
	out := sized(dst, len(frame))
	copy(out, frame)
	return out, nil
}

// trimmer is the memory that a Trim needs besides dst.
type trimmer struct {
	Builder
	buf     []byte
	headers []Header
}

var trimmers = sync.Pool{New: func() any { return new(trimmer) }}

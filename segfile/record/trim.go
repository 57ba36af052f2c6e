package record

import "sync"

var builders = sync.Pool{New: func() any { return new(Builder) }}

// Trim builds a frame of those records of b that keep wants, in dst where that is
// large enough: what remains of a batch that was stored in part, or one range's
// share of a batch that lies across several. Producer, sequences and times stay;
// prevSeq is what the producer sent to the range before. The frame is plain,
// whatever b was, and still to be stamped. Without a record left it is ErrEmpty.
//
// keep is asked once for each record, in order.
func Trim(dst []byte, b Batch, prevSeq uint64, keep func(i int) bool) ([]byte, error) {
	out := builders.Get().(*Builder)
	defer func() {
		out.Reset(nil, 0)
		builders.Put(out)
	}()
	out.Reset(sized(dst, trimSize(b.Len(), len(b.data), b.set())), b.Head.Producer)
	var headers []Header
	for i := range b.Len() {
		if !keep(i) {
			continue
		}
		headers = b.Headers(i, headers[:0])
		r := Record{Key: b.Key(i), Value: b.Value(i), Headers: headers, Timestamp: b.Timestamp(i)}
		if err := out.Add(&r, b.Seq(i)); err != nil {
			return nil, err
		}
	}
	return out.Finish(prevSeq)
}

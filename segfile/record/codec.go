package record

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"
)

// Codec says how a payload is compressed. The numbers are part of the format.
type Codec uint8

const (
	None   Codec = 0
	S2     Codec = 1
	Zstd   Codec = 2
	codecs       = Zstd // the last one
)

func (c Codec) String() string {
	switch c {
	case None:
		return "none"
	case S2:
		return "s2"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("codec(%d)", uint8(c))
}

// ParseCodec reads what [Codec.String] writes.
func ParseCodec(s string) (Codec, error) {
	for c := None; c <= codecs; c++ {
		if s == c.String() {
			return c, nil
		}
	}
	return None, fmt.Errorf("record: codec %q is not known: use none, s2 or zstd", s)
}

// Both hold one coder for each processor, made when first used, and let callers
// wait for them: none runs a goroutine.
var (
	zstdEncoder = sync.OnceValues(func() (*zstd.Encoder, error) {
		return zstd.NewWriter(nil, zstd.WithEncoderConcurrency(coders()), zstd.WithEncoderCRC(false),
			zstd.WithWindowSize(4<<20), zstd.WithLowerEncoderMem(true))
	})
	zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
		return zstd.NewReader(nil, zstd.WithDecoderConcurrency(coders()), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(MaxFrame), zstd.WithDecoderMaxWindow(MaxFrame), zstd.WithDecodeAllCapLimit(true))
	})
	compressed = sync.Pool{New: func() any { return new([]byte) }}
)

func coders() int { return min(runtime.GOMAXPROCS(0), 16) }

// Compress makes a frame of the same records with a compressed payload, in dst
// where that is large enough. frame is one that Finish or Trim answered, not
// stamped yet. Where compressing gains nothing the answer is frame itself.
func Compress(dst, frame []byte, c Codec) ([]byte, error) {
	h, err := ParseHead(frame, 0)
	if err != nil {
		return nil, err
	}
	if h.Flags != 0 || h.Codec != None || c > codecs || uint64(h.FrameLen) > uint64(len(frame)) {
		return nil, ErrUsage
	}
	frame = frame[:h.FrameLen:h.FrameLen]
	if c == None {
		return frame, nil
	}
	tmp := compressed.Get().(*[]byte)
	defer compressed.Put(tmp)
	payload, err := compress((*tmp)[:0], frame[HeaderSize:], c)
	if err != nil {
		return nil, err
	}
	*tmp = payload[:0]
	if len(payload) >= int(h.RawLen) {
		return frame, nil
	}
	out := sized(dst, HeaderSize+len(payload))
	copy(out[HeaderSize:], payload)
	h.Codec, h.FrameLen, h.PayloadLen = c, uint32(len(out)), uint32(len(payload))
	h.Hash = xxh3.Hash(out[HeaderSize:])
	h.Put(out, 0)
	return out, nil
}

func compress(dst, src []byte, c Codec) ([]byte, error) {
	if c == S2 {
		return s2.Encode(dst[:cap(dst)], src), nil
	}
	enc, err := zstdEncoder()
	if err != nil {
		return nil, fmt.Errorf("record: zstd: %w", err)
	}
	return enc.EncodeAll(src, dst), nil
}

// decompress answers the rawLen bytes that p holds compressed. rawLen is bounded
// by the header's check, and nothing longer is ever written.
func (s *Scratch) decompress(c Codec, p []byte, rawLen int) ([]byte, error) {
	if cap(s.raw) < rawLen {
		s.raw = make([]byte, rawLen)
	}
	dst := s.raw[:rawLen:rawLen]
	switch c {
	case S2:
		if n, err := s2.DecodedLen(p); err != nil || n != rawLen {
			return nil, corruptAt(0, "s2 payload announces another length")
		}
		out, err := s2.Decode(dst, p)
		if err != nil || len(out) != rawLen {
			return nil, corruptAt(0, "s2 payload does not decompress")
		}
		return out, nil
	default:
		dec, err := zstdDecoder()
		if err != nil {
			return nil, fmt.Errorf("record: zstd: %w", err)
		}
		out, err := dec.DecodeAll(p, dst[:0])
		if err != nil {
			return nil, corruptAt(0, "zstd payload does not decompress: "+err.Error())
		}
		if len(out) != rawLen {
			return nil, corruptAt(0, "zstd payload decompresses to another length")
		}
		return out, nil
	}
}

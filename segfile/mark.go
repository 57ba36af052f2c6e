package segfile

import (
	"encoding/binary"
	"fmt"

	"github.com/ringfence/ringfence/segfile/record"
)

// Payloads of mark frames. They begin with four bytes that say which one:
//
//	"RFst" start: 4 length of the header copy, the copy, the producer table
//	"RFpr" proof: 4 zero
//	"RFpt" pointer, "RFcp" checkpoint: see checkpoint.go
//
// The start mark is the first frame of every file. Its copy of the header block
// (without the zeros before the checksum) lets a file whose header is damaged
// still be read: the salt in the copy must be the one that the mark's own checksum
// begins with. A proof is written when a segment falls idle or is closed: its
// durable position proves everything before it.
const (
	startMagic = "RFst"
	proofMagic = "RFpr"
	markFixed  = 8
)

// startMark is the whole frame of a start mark.
func startMark(h *header, table *ProducerTable) ([]byte, error) {
	head := make([]byte, block)
	h.put(head)
	used := hoName + len(h.Topic)
	p := append(make([]byte, 0, markFixed+used+4+table.size()), startMagic...)
	p = binary.LittleEndian.AppendUint32(p, uint32(used+4))
	p = append(p, head[:used]...)
	p = append(p, head[blockCRC:]...)
	p, _ = table.AppendBinary(p) // it has no errors
	f, err := record.BuildMark(nil, p)
	if err != nil {
		return nil, fmt.Errorf("segfile: start mark: %w", err)
	}
	record.Stamp(f, h.Base, DataStart, h.Salt)
	return f, nil
}

// splitStart takes a start mark's payload apart. The header is only as good as
// the checksums it passed.
func splitStart(p []byte) (h header, table []byte, ok bool) {
	if len(p) < markFixed || string(p[:4]) != startMagic {
		return h, nil, false
	}
	n := int64(binary.LittleEndian.Uint32(p[4:]))
	p = p[markFixed:]
	if n < hoName+4 || n > block || n > int64(len(p)) {
		return h, nil, false
	}
	head := make([]byte, block)
	copy(head, p[:n-4])
	copy(head[blockCRC:], p[n-4:n])
	h, state, _ := readHeader(head)
	return h, p[n:], state == headerValid
}

// proofMark appends to buf a proof that is ready to be written at pos, padded to
// whole blocks, and its head.
func proofMark(buf []byte, base uint64, pos int64, salt uint64) ([]byte, record.Head, error) {
	var p [markFixed]byte
	copy(p[:], proofMagic)
	f := make([]byte, block)
	h, err := stampMark(f, p[:], base, pos, salt)
	if err != nil {
		return nil, record.Head{}, fmt.Errorf("segfile: proof mark: %w", err)
	}
	return append(buf, f...), h, nil
}

package segfile

import (
	"encoding/binary"
	"fmt"

	"github.com/ringfence/ringfence/segfile/record"
)

// Payloads of mark frames. They begin with four bytes that say which one:
//
//	"RFst" start: 4 length of the header copy, the copy, the producer table
//	"RFpt" pointer, "RFcp" checkpoint: see checkpoint.go
//
// The start mark is the first frame of every file. Its copy of the header block
// (without the zeros before the checksum) lets a file whose header is damaged
// still be read: the salt in the copy must be the one that the mark's own checksum
// begins with. A mark of another kind is passed over: it proves what its durable
// position says, as every frame does.
const (
	startMagic = "RFst"
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

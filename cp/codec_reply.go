package cp

// A reply from a log:
//
//	off size field
//	  0    1 format version, 1
//	  1    2 number of the refusal, 0 for none
//	  3   20 range
//	 23   20 range 2
//	 43    8 length
//	 51    8 next offset
//	 59    4 next sequence
//	 63    8 generation
//	 71    4 length of the export
//	 75      export
const replyVersion = 1

// Encode is a reply's bytes. A refusal travels as its number; an error that is
// none of this package's becomes [ErrUnknownCommand]'s, and Apply answers none.
func (r Reply) Encode() []byte {
	e := encoder{b: make([]byte, 0, 75+len(r.Export))}
	e.u8(replyVersion)
	n := Code(r.Err)
	if r.Err != nil && n == 0 {
		n = Code(ErrUnknownCommand)
	}
	e.u16(n)
	e.rangeID(r.Range)
	e.rangeID(r.Range2)
	e.u64(r.Length)
	e.u64(r.NextOffset)
	e.u32(r.NextSequence)
	e.u64(r.Generation)
	e.bytes(r.Export)
	return e.b
}

// DecodeReply reads what [Reply.Encode] writes, with the same errors in it, so
// that errors.Is goes on working. A number of newer software becomes an
// [UnknownError]. It fails with [ErrMalformed] or [ErrNewerCommand].
func DecodeReply(b []byte) (Reply, error) {
	if len(b) == 0 || b[0] == 0 {
		return Reply{}, ErrMalformed
	}
	if b[0] > replyVersion {
		return Reply{}, ErrNewerCommand
	}
	d := decoder{b: b[1:]}
	n := d.u16()
	r := Reply{
		Range: d.rangeID(), Range2: d.rangeID(), Length: d.u64(),
		NextOffset: d.u64(), NextSequence: d.u32(), Generation: d.u64(), Export: d.bytes(),
	}
	if !d.done() {
		return Reply{}, ErrMalformed
	}
	switch c := byCode[n]; {
	case n == 0:
	case n == Code(ErrAlreadySealed):
		r.Err = AlreadySealed{Length: r.Length}
	case c != nil:
		r.Err = c
	default:
		r.Err = UnknownError{Code: n}
	}
	return r, nil
}

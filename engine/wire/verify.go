package wire

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// table is what the verifier knows of a table of the schema. The tables are a tree:
// none contains itself, so messages nest no deeper than the schema does.
type table struct {
	name   string
	fields []field
	unpack func(msg []byte) any // of a verified message with this table as its root
}

// field is one of a table, by its place in it.
type field struct {
	kind  kind
	size  int    // bytes in the table, or of an entry of a vector
	limit int    // of the bytes of a text or vector; 0: the message's length
	of    *table // of one and many
}

type kind uint8

const (
	scalar      kind = iota
	reference        // to a table
	text1            // to a string
	vector1          // to a vector of numbers
	textVector       // to a vector of strings
	tableVector      // to a vector of tables
)

// The fields that the schema has.
var (
	byte1   = field{kind: scalar, size: 1}
	byte2   = field{kind: scalar, size: 2}
	byte4   = field{kind: scalar, size: 4}
	byte8   = field{kind: scalar, size: 8}
	text    = field{kind: text1, limit: MaxText}
	cursor  = field{kind: text1, limit: MaxCursor}
	secret  = field{kind: vector1, size: 1, limit: MaxSecret}
	numbers = field{kind: vector1, size: 4}
	texts   = field{kind: textVector, limit: MaxText}
)

func one(t *table) field  { return field{kind: reference, of: t} }
func many(t *table) field { return field{kind: tableVector, of: t} }

// refSize is the size of an offset to something in the message, and of the length
// before a vector or string.
const refSize = 4

// Verify holds a message that may be anything against the schema of its key and
// flags: every offset leads into msg, every string is valid UTF-8, ends in a zero
// byte and is no longer than its kind may be, and nothing is used twice. Fields that
// this version does not know are passed over. Alignment is not asked for.
//
// It takes time linear in msg, reads nothing outside of it, allocates nothing and
// never panics. An error is an *[Error] that names message and byte.
func Verify(key Key, flags uint16, msg []byte) error {
	_, err := verified(key, flags, msg)
	return err
}

// verified answers the table that msg is one of.
func verified(key Key, flags uint16, msg []byte) (*table, error) {
	if !validFlags(flags) {
		return nil, &Error{Code: CodeMalformed, Detail: fmt.Sprintf("%s: unknown flags %#x", key, flags)}
	}
	if flags == FlagReply|FlagFailed { // of any key: the request may have had an unknown one
		return &tableError, tableError.verify(msg)
	}
	x := exchangeOf(key)
	if x == nil {
		return nil, &Error{Code: CodeUnknownKey, Detail: fmt.Sprintf("%s is not of protocol version %d", key, Version)}
	}
	t := x.table(flags)
	if t == nil {
		return nil, &Error{Code: CodeMalformed, Detail: fmt.Sprintf("%s has no message with flags %#x", key, flags)}
	}
	return t, t.verify(msg)
}

// verifier walks one message.
type verifier struct {
	b []byte
	// left is how many bytes there are that were not read yet. Each is read as part
	// of one thing only, or a small message could unpack to an enormous one.
	left int
}

func (t *table) verify(msg []byte) error {
	at, reason := t.fault(msg)
	if reason == "" {
		return nil
	}
	return &Error{Code: CodeMalformed, Detail: fmt.Sprintf("message %s: %s at byte %d of %d", t.name, reason, at, len(msg))}
}

// fault answers what is wrong with msg and where, "" if nothing is.
func (t *table) fault(msg []byte) (at int, reason string) {
	if len(msg) > MaxMessage {
		return MaxMessage, "longer than a message may be"
	}
	if len(msg) < refSize {
		return 0, "shorter than a message can be"
	}
	v := verifier{msg, len(msg) - refSize}
	root := v.follow(0)
	if root == 0 {
		return 0, "root is not in the message"
	}
	return v.table(t, root)
}

func (v *verifier) uint16(at int) int    { return int(binary.LittleEndian.Uint16(v.b[at:])) }
func (v *verifier) uint32(at int) uint32 { return binary.LittleEndian.Uint32(v.b[at:]) }

// follow answers where the offset at a place leads to; 0: to nothing that has at
// least refSize bytes in the message.
func (v *verifier) follow(at int) int {
	off := v.uint32(at)
	if off < refSize || uint64(off)+refSize > uint64(len(v.b)-at) {
		return 0
	}
	return at + int(off)
}

// spend says whether n bytes are left to read.
func (v *verifier) spend(n int) bool {
	v.left -= n
	return v.left >= 0
}

const usedTwice = "more is read than there is: a part is used twice"

// table checks the table at a place of which refSize bytes are in the message.
func (v *verifier) table(t *table, at int) (int, string) {
	vtable := int64(at) - int64(int32(v.uint32(at)))
	if vtable < refSize || vtable+4 > int64(len(v.b)) {
		return at, "vtable is not in the message"
	}
	vt := int(vtable)
	vtableLen, tableLen := v.uint16(vt), v.uint16(vt+2)
	if vtableLen < 4 || vtableLen%2 != 0 || vt+vtableLen > len(v.b) {
		return vt, "vtable size out of bounds"
	}
	if tableLen < 4 || at+tableLen > len(v.b) {
		return vt + 2, "table size out of bounds"
	}
	// Builders share vtables between tables whose fields lie alike and whose padding does
	// not, so what counts is what is read of the table, not how long it says that it is.
	if !v.spend(refSize) {
		return at, usedTwice
	}
	for i := range t.fields {
		entry := 4 + 2*i
		if entry >= vtableLen {
			break
		}
		f, slot := &t.fields[i], v.uint16(vt+entry)
		if slot == 0 {
			continue
		}
		if slot < 4 || slot+f.inline() > tableLen {
			return vt + entry, "field is not in the table"
		}
		if !v.spend(f.inline()) {
			return at, usedTwice
		}
		if at, reason := v.field(f, at+slot); reason != "" {
			return at, reason
		}
	}
	return 0, ""
}

// inline is how many bytes the field has in the table.
func (f *field) inline() int {
	if f.kind == scalar {
		return f.size
	}
	return refSize
}

// field checks what the field at a place in a table refers to.
func (v *verifier) field(f *field, at int) (int, string) {
	switch f.kind {
	case reference:
		return v.reference(f.of, at)
	case text1:
		return v.text(f.limit, at)
	case vector1:
		_, n, at, reason := v.vector(at, f.size)
		if reason == "" && f.limit != 0 && n*f.size > f.limit {
			return at, "vector is too long"
		}
		return at, reason
	case textVector, tableVector:
		return v.references(f, at)
	}
	return 0, ""
}

// reference checks the table that the offset at a place leads to.
func (v *verifier) reference(t *table, at int) (int, string) {
	to := v.follow(at)
	if to == 0 {
		return at, "table is not in the message"
	}
	return v.table(t, to)
}

// references checks a vector of strings or tables.
func (v *verifier) references(f *field, at int) (int, string) {
	start, n, at, reason := v.vector(at, refSize)
	if reason != "" {
		return at, reason
	}
	for i := range n {
		entry := start + refSize*i
		if f.kind == textVector {
			at, reason = v.text(f.limit, entry)
		} else {
			at, reason = v.reference(f.of, entry)
		}
		if reason != "" {
			return at, reason
		}
	}
	return 0, ""
}

// vector answers where the entries of the vector are that the offset at a place
// leads to, and how many.
func (v *verifier) vector(at, size int) (start, n, bad int, reason string) {
	to := v.follow(at)
	if to == 0 {
		return 0, 0, at, "vector is not in the message"
	}
	start = to + refSize
	entries := v.uint32(to)
	if uint64(entries)*uint64(size) > uint64(len(v.b)-start) {
		return 0, 0, to, "vector is longer than the message"
	}
	n = int(entries)
	if !v.spend(refSize + n*size) {
		return 0, 0, to, usedTwice
	}
	return start, n, to, ""
}

// text checks the string that the offset at a place leads to.
func (v *verifier) text(limit, at int) (int, string) {
	start, n, at, reason := v.vector(at, 1)
	switch {
	case reason != "":
		return at, reason
	case n > limit:
		return at, "string is too long"
	case start+n >= len(v.b) || v.b[start+n] != 0:
		return at, "string does not end in a zero byte"
	case !utf8.Valid(v.b[start : start+n]):
		return at, "string is not valid UTF-8"
	}
	return 0, ""
}

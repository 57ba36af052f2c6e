package record

import "encoding/binary"

// corruptAt says where in the payload.
func corruptAt(at int, reason string) error { return corrupt(HeaderSize+at, reason) }

// columns are the vectors of a payload, absent ones nil.
type columns struct {
	count     int
	data      []byte
	keyEnds   []byte // uint32 each
	valueEnds []byte // uint32 each
	ends      []byte // where records end: headerEnds where there are any, else valueEnds

	headerEnds []byte // uint32 each
	timestamps []byte // int64 each
	sequences  []byte // uint32 each
	nullKeys   []byte // bits
	nullValues []byte // bits

	keyEndsAt int // where in the payload
}

// set says which of the optional columns there are.
func (c *columns) set() (cols columnSet) {
	if c.headerEnds != nil {
		cols |= hasHeaders
	}
	if c.sequences != nil {
		cols |= hasSequences
	}
	if c.timestamps != nil {
		cols |= hasTimestamps
	}
	if c.nullKeys != nil {
		cols |= hasNullKeys
	}
	if c.nullValues != nil {
		cols |= hasNullValues
	}
	return cols
}

// slots are where in the payload a table's fields are, 0 for absent ones.
type slots [fields]int

// locate finds the columns of the flatbuffer p and holds their lengths against one
// another. Any layout is allowed that keeps the alignment every flatbuffer has.
// There is one table, so nothing nests and each vector is looked at once.
func locate(p []byte) (c columns, err error) {
	at, err := findFields(p)
	if err != nil {
		return c, err
	}
	if at[fieldData] == 0 || at[fieldKeyEnds] == 0 || at[fieldValueEnds] == 0 {
		return c, corruptAt(0, "a column that every batch has is absent")
	}
	if c.data, _, err = vector(p, at[fieldData], 1); err != nil {
		return c, err
	}
	if c.keyEnds, c.keyEndsAt, err = vector(p, at[fieldKeyEnds], 4); err != nil {
		return c, err
	}
	c.count = len(c.keyEnds) / 4
	if c.count == 0 || c.count > MaxRecords {
		return c, corruptAt(at[fieldKeyEnds], "record count out of bounds")
	}
	for _, col := range [...]struct {
		field, size, entries int
		to                   *[]byte
	}{
		{fieldValueEnds, 4, c.count, &c.valueEnds},
		{fieldHeaderEnds, 4, c.count, &c.headerEnds},
		{fieldTimestamps, 8, c.count, &c.timestamps},
		{fieldSequences, 4, c.count, &c.sequences},
		{fieldNullKeys, 1, (c.count + 7) / 8, &c.nullKeys},
		{fieldNullValues, 1, (c.count + 7) / 8, &c.nullValues},
	} {
		slot := at[col.field]
		if slot == 0 {
			continue
		}
		v, _, err := vector(p, slot, col.size)
		switch {
		case err != nil:
			return c, err
		case len(v) == 0 && col.field != fieldValueEnds: // how some builders write an absent column
			continue
		case len(v) != col.size*col.entries:
			return c, corruptAt(slot, "column does not match the record count")
		case col.size == 1 && c.count%8 != 0 && v[len(v)-1]>>(c.count%8) != 0:
			return c, corruptAt(slot, "bits behind the last record are set")
		}
		*col.to = v
	}
	c.ends = c.valueEnds
	if c.headerEnds != nil {
		c.ends = c.headerEnds
	}
	return c, nil
}

// findFields checks root, table and vtable, and answers where the fields are.
func findFields(p []byte) (at slots, err error) {
	le := binary.LittleEndian
	if len(p) < minPayload {
		return at, corruptAt(0, "payload is too short for a flatbuffer")
	}
	root := int64(le.Uint32(p))
	if root < 4 || root%4 != 0 || root+4 > int64(len(p)) {
		return at, corruptAt(0, "root is not in the payload")
	}
	table := int(root)
	vtable := root - int64(int32(le.Uint32(p[table:])))
	if vtable < 4 || vtable%2 != 0 || vtable+4 > int64(len(p)) {
		return at, corruptAt(table, "vtable is not in the payload")
	}
	v := int(vtable)
	vtableLen, tableLen := int(le.Uint16(p[v:])), int(le.Uint16(p[v+2:]))
	if vtableLen < 4 || vtableLen%2 != 0 || v+vtableLen > len(p) {
		return at, corruptAt(v, "vtable size out of bounds")
	}
	if tableLen < 4 || table+tableLen > len(p) {
		return at, corruptAt(v+2, "table size out of bounds")
	}
	for f := 0; 4+2*f < vtableLen; f++ {
		slot := int(le.Uint16(p[v+4+2*f:]))
		switch {
		case slot == 0:
			continue
		case f >= fields:
			return at, corruptAt(v+4+2*f, "field that this version does not have")
		case slot < 4 || slot%4 != 0 || slot+4 > tableLen:
			return at, corruptAt(v+4+2*f, "field is not in the table")
		}
		at[f] = table + slot
	}
	return at, nil
}

// vector answers the bytes of the vector, of entries of size bytes, that the field
// at slot points to, and where they start.
func vector(p []byte, slot, size int) (v []byte, at int, err error) {
	prefix := int64(slot) + int64(binary.LittleEndian.Uint32(p[slot:]))
	if prefix == int64(slot) || prefix%4 != 0 || prefix+4 > int64(len(p)) {
		return nil, 0, corruptAt(slot, "vector is not in the payload")
	}
	start := prefix + 4
	length := int64(binary.LittleEndian.Uint32(p[prefix:])) * int64(size)
	if length > int64(len(p))-start {
		return nil, 0, corruptAt(int(prefix), "vector is longer than the payload")
	}
	if size == 8 && length != 0 && start%8 != 0 {
		return nil, 0, corruptAt(slot, "vector is not aligned")
	}
	return p[start : start+length : start+length], int(start), nil
}

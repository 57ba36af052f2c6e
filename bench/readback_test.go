package bench

import (
	"encoding/binary"
	"testing"

	"github.com/ringfence/ringfence/engine"
)

// What retention removes while it is read back is no loss, and hides none.
func TestReadBackAgainstRetention(t *testing.T) {
	at := func(offset uint64, worker, seq uint64) engine.ConsumedRecord {
		key := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, worker), seq)
		return engine.ConsumedRecord{Offset: offset, Key: key}
	}
	page := func(records ...engine.ConsumedRecord) engine.Page { return engine.Page{Records: records} }
	skip := func(from, n uint64, damaged bool) engine.Page {
		return engine.Page{Skips: []engine.Skip{{From: from, Offsets: n, Damaged: damaged}}}
	}
	for name, tt := range map[string]struct {
		pages []engine.Page
		ok    bool
	}{
		"whole":                  {[]engine.Page{page(at(0, 0, 1), at(1, 1, 1), at(2, 0, 2), at(3, 0, 3), at(4, 1, 2))}, true},
		"began later":            {[]engine.Page{page(at(2, 0, 2), at(3, 0, 3), at(4, 1, 2))}, true},
		"removed meanwhile":      {[]engine.Page{page(at(0, 0, 1)), skip(1, 2, false), page(at(3, 0, 3), at(4, 1, 2))}, true},
		"all of one removed":     {[]engine.Page{skip(0, 4, false), page(at(4, 1, 2))}, true},
		"lost after a removal":   {[]engine.Page{skip(0, 1, false), page(at(1, 1, 1), at(2, 0, 2), at(4, 1, 2))}, false},
		"lost at the end":        {[]engine.Page{skip(0, 2, false), page(at(2, 0, 2), at(3, 0, 3))}, false},
		"back after a removal":   {[]engine.Page{page(at(0, 0, 2)), skip(1, 2, false), page(at(3, 0, 2), at(4, 1, 2))}, false},
		"damaged":                {[]engine.Page{skip(0, 3, true), page(at(3, 0, 3), at(4, 1, 2))}, false},
		"skipped what was ahead": {[]engine.Page{page(at(0, 0, 1)), skip(2, 2, false), page(at(4, 1, 2))}, false},
		"a gap without a skip":   {[]engine.Page{page(at(0, 0, 1), at(3, 0, 3), at(4, 1, 2))}, false},
	} {
		b := newReadBack(2)
		var err error
		for _, p := range tt.pages {
			if err = b.take(p); err != nil {
				break
			}
		}
		if err == nil {
			err = b.end([]uint64{3, 2})
		}
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

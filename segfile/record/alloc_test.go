package record

import "testing"

// Once it has grown its columns, a Builder allocates nothing; nor do Verify with
// a Scratch, Check, Stamp, and reading.
func TestAllocations(t *testing.T) {
	records := variety()
	var b Builder
	var s Scratch
	buf, headers := make([]byte, 1<<20), make([]Header, 0, 8)
	plain := mustBuild(t, 1, 0, records)
	large, err := Compress(nil, mustBuild(t, 1, 0, consecutive(1, benchRecords(100, 1000)...)), S2)
	if err != nil || codecOf(large) != S2 {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"build": func() {
			b.Reset(buf, 1)
			for range 100 {
				for i := range records {
					seq := uint64(0)
					if err := b.Add(&records[i].Record, seq); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := b.Finish(0); err != nil {
				t.Fatal(err)
			}
		},
		"verify and read": func() {
			batch, err := Verify(plain, 0, &s)
			if err != nil {
				t.Fatal(err)
			}
			for i := range batch.Len() {
				_, _, _ = batch.Key(i), batch.Value(i), batch.Position(i)
				headers = batch.Headers(i, headers[:0])
			}
		},
		"verify s2": func() {
			if _, err := Verify(large, 0, &s); err != nil {
				t.Fatal(err)
			}
		},
		"check and stamp": func() {
			if _, err := Check(plain, 0); err != nil {
				t.Fatal(err)
			}
			Stamp(plain, 0, 0, 0)
			_ = Identity(plain)
		},
	} {
		f()
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// codecOf is the codec of a frame.
func codecOf(frame []byte) Codec { return Codec(frame[offCodec]) }

package bench

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
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
			err = b.end([]lastSeq{{n: 3}, {n: 2}})
		}
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What another process stored is read back through a client, and what is missing there is
// found.
func TestReadBackFromAnotherProcess(t *testing.T) {
	in, ask := io.Pipe()
	said, out := io.Pipe()
	ended := make(chan error, 1)
	o := ServantOptions(1<<20, 2<<20)
	o.IO = "pool"
	go func() { ended <- Serve(t.Context(), Service{Dir: t.TempDir(), Over: OverTrusted}, o, in, out) }()
	lines := bufio.NewScanner(said)
	lines.Scan()
	defer os.RemoveAll(filepath.Dir(lines.Text()))
	w := Append{RecordSize: 1000, BatchBytes: 64 << 10, InFlight: 4, Workers: 2}
	a := &apart{Run: &Run{w: w, text: benchText(), seqs: make([]lastSeq, w.Workers), net: &remote{}}, stores: true}
	for range w.Workers {
		c, err := client.DialShm(t.Context(), lines.Text(), client.Options{MemoryBytes: 2 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.CreateTopic(t.Context(), topic, api.TopicOptions{}); err != nil && !errors.Is(err, api.ErrTopicExists) {
			t.Fatal(err)
		}
		p, err := c.NewProducer(a.producerOptions())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		a.net.clients, a.net.outlets = append(a.net.clients, c), append(a.net.outlets, remoteOutlet{p})
	}
	if n, _, err := a.load(t.Context(), 0.1); n == 0 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if back, err := a.ReadBack(t.Context()); err != nil {
		t.Error(err)
	} else {
		t.Log(back)
	}
	a.seqs[1].n++ // as if one more had been acknowledged
	if _, err := a.ReadBack(t.Context()); !errors.Is(err, ErrReadBack) {
		t.Errorf("a record is missing: %v", err)
	}
	t.Cleanup(func() {
		ask.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

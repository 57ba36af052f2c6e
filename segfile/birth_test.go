package segfile

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

// Whatever fails while a segment is made, nothing stands under its name, the error
// says why, and the next try works. (D01: also a full disk)
func TestCreateFails(t *testing.T) {
	for _, l := range []life{lifeGrown, lifeRecycled} {
		failed := 0
		for nth := 1; ; nth++ {
			d := newDisk(uint64(nth))
			p := newTestPool(t, d, l)
			f := d.Fail(simdisk.Nth(nth, syscall.ENOSPC, simdisk.On(simdisk.Create, simdisk.Write, simdisk.Rename, simdisk.SyncDir, simdisk.Mkdir)))
			w, err := p.Create(t.Context(), testMeta(1), nil)
			f.Stop()
			if f.ErrorCount() == 0 {
				must(t, err)
				break
			}
			failed++
			if !errors.Is(err, syscall.ENOSPC) || w != nil {
				t.Fatalf("operation %d failed: %v", nth, err)
			}
			if _, err := d.Open(seg1, true); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("operation %d failed, and the file is there: %v", nth, err)
			}
			w = create(t, p, testMeta(1))
			put(t, w, (&producerModel{id: 3}).frame(rand.New(rand.NewPCG(1, 1)), 1, 10))
			steps(t, p, time.UnixMilli(testNow).Add(time.Hour))
			if v := mustRecover(t, d, seg1); v.End.Offset != 1001 {
				t.Fatalf("%+v", v.End)
			}
		}
		if failed < 3 { // a write, a rename and a sync at least
			t.Errorf("%s: only %d operations failed", l, failed)
		}
	}
}

// No segment takes the place of another, and nothing is made from nonsense.
func TestCreateRefuses(t *testing.T) {
	d := newDisk(1)
	p := newTestPool(t, d, lifeGrown)
	frames := filled(t, p, 1, 64<<10)
	if _, err := p.Create(t.Context(), testMeta(1), nil); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	holds(t, d, seg1, frames)
	for name, edit := range map[string]func(m *Meta){
		"topic":     func(m *Meta) { m.ID.Range.Topic = fence.TopicID{} },
		"name":      func(m *Meta) { m.Topic = "" },
		"long name": func(m *Meta) { m.Topic = string(make([]byte, MaxTopicName+1)) },
		"slice":     func(m *Meta) { m.Start = m.End },
		"salt":      func(m *Meta) { m.Salt = 0 },
	} {
		m := testMeta(2)
		edit(&m)
		if _, err := p.Create(t.Context(), m, nil); err == nil {
			t.Errorf("%s: made", name)
		}
	}
	if _, err := p.Create(t.Context(), testMeta(2), NewProducerTable(0, 5)); err == nil {
		t.Error("a producer table of another slice is taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Create(ctx, testMeta(2), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A table goes from segment to segment: through the start mark and the footer.
func TestTableGoesOn(t *testing.T) {
	d := newDisk(1)
	p := newTestPool(t, d, lifeGrown)
	table := NewProducerTable(0, 1<<32)
	for i := range uint64(MaxProducers) {
		table.Update(batchOf(i+1, 0, 1, 1))
	}
	w, err := p.Create(t.Context(), testMeta(1), table)
	must(t, err)
	put(t, w, (&producerModel{id: 7, seq: 1}).frame(rand.New(rand.NewPCG(1, 1)), 5, 100))
	want, _ := w.Table().AppendBinary(nil)
	v := mustRecover(t, d, seg1)
	if have, _ := v.Table.AppendBinary(nil); string(have) != string(want) || v.State != Clean {
		t.Fatal("recovery has another table")
	}
	fenceNow(t, w)
	sound(t, d, seg1)
	r, err := OpenReader(d, seg1)
	must(t, err)
	defer r.Close()
	if have, _ := r.Table().AppendBinary(nil); string(have) != string(want) {
		t.Fatal("the footer has another table")
	}
}

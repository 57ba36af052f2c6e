package engine

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/segfile/disk"
)

func TestProduceThenConsume(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "logs")
	p, err := e.NewProducer(ProducerOptions{Topic: "logs"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		pl, err := p.Produce(context.Background(), Record{Key: []byte("k"), Value: fmt.Append(nil, i)})
		if err != nil {
			t.Fatal(err)
		}
		if pl.First != uint64(i) {
			t.Fatalf("record %d got offset %d", i, pl.First)
		}
	}
	if got := readAll(t, e, "logs", FromStart()); fmt.Sprint(got) != "[0 1 2 3 4 5 6 7 8 9]" {
		t.Fatal(got)
	}
}

func TestManyGoroutinesAcrossSplitAndRoll(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	newTopic(t, e, "logs")
	p, err := e.NewProducer(ProducerOptions{Topic: "logs"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const writers, each = 16, 300
	var group sync.WaitGroup
	var places sync.Map
	for w := range writers {
		group.Go(func() {
			for i := range each {
				pl, err := p.Produce(ctx, Record{Key: fmt.Append(nil, "k", w), Value: fmt.Appendf(nil, "%d %d", w, i)})
				places.Store(fmt.Sprintf("%d %d", w, i), pl)
				if err != nil || pl.Duplicate {
					t.Errorf("writer %d record %d: %+v %v", w, i, pl, err)
					return
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	if _, _, err := e.SplitRange(ctx, "logs", 0); err != nil {
		t.Error(err)
	}
	if n, err := e.Roll(ctx, "logs"); err != nil {
		t.Error(n, err)
	}
	if _, _, err := e.SplitRange(ctx, "logs", 1); err != nil {
		t.Error(err)
	}
	if _, err := e.MergeRanges(ctx, "logs", 3, 4); err != nil {
		t.Error(err)
	}
	group.Wait()
	got := readAll(t, e, "logs", FromStart())
	if len(got) != writers*each {
		seen := map[string]bool{}
		for _, v := range got {
			seen[v] = true
		}
		places.Range(func(k, v any) bool {
			if !seen[k.(string)] {
				t.Errorf("record %v is missing, placed %+v", k, v)
			}
			return true
		})
		d, _ := e.Describe(ctx, "logs")
		t.Errorf("%+v", d)
		t.Errorf("duplicates %d", e.Stats().Store.Duplicates)
		t.Fatalf("%d records, want %d", len(got), writers*each)
	}
	next := map[int]int{}
	for _, v := range got {
		var w, i int
		fmt.Sscanf(v, "%d %d", &w, &i)
		if next[w] != i {
			t.Fatalf("writer %d: record %d where %d was due", w, i, next[w])
		}
		next[w]++
	}
}

// A segment rolls when its file is large, not its frames: a record that goes alone takes a
// block of it.
func TestLoneRecordsFillTheFile(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: MinSegmentBytes})
	newTopic(t, e, "logs")
	p := newProducer(t, e, ProducerOptions{Topic: "logs"})
	blocks := 2 * MinSegmentBytes / disk.Block
	sent := 0
	for ; e.Stats().Fences == 0 && sent < blocks; sent++ {
		produce(t, p, "k", "v")
	}
	if sent == blocks {
		t.Fatalf("%d records went alone, in %d blocks at least, and nothing was rolled", sent, blocks)
	}
	if sent < blocks/2-100 {
		t.Fatalf("rolled after %d records, of which each takes a block of %d", sent, blocks/2)
	}
	if got := readAll(t, e, "logs", FromStart()); len(got) != sent {
		t.Fatalf("%d of %d records", len(got), sent)
	}
}

func TestProducersSurviveRolls(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "logs")
	ctx := context.Background()
	p, err := e.NewProducer(ProducerOptions{Topic: "logs"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if _, err := p.Produce(ctx, Record{Value: fmt.Append(nil, i)}); err != nil {
			t.Fatal(i, err)
		}
		if n, err := e.Roll(ctx, "logs"); err != nil || n != 1 {
			t.Fatal(n, err)
		}
	}
	if got := readAll(t, e, "logs", FromStart()); fmt.Sprint(got) != "[0 1 2 3 4]" {
		t.Fatal(got)
	}
}

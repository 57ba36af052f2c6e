package frontend

import (
	"errors"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// A frontend routes by what it was told, and its topic says when that changed.
func TestLearn(t *testing.T) {
	f, err := New(Options{Self: "client", Bits: func() uint64 { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	id := fence.TopicID{1}
	tile := func(id fence.TopicID, ends ...uint32) (list []Slice) {
		first := uint32(0)
		for i, last := range ends {
			list = append(list, Slice{Range: fence.RangeID{Topic: id, Seq: uint32(10*len(ends) + i)}, First: first, Last: last})
			first = last + 1
		}
		return list
	}
	learn := func(id fence.TopicID, list []Slice) *Topic {
		t.Helper()
		topic, err := f.Learn("t", id, list)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := topic.Slices(); !slices.Equal(got, list) {
			t.Fatalf("learned %v, routes by %v", list, got)
		}
		return topic
	}
	const end = 1<<32 - 1
	one := learn(id, tile(id, end))
	v := one.Version()
	if two := learn(id, tile(id, end)); two != one || two.Version() != v {
		t.Error("the same routes are another version")
	}
	if learn(id, tile(id, 5, end)); one.Version() == v {
		t.Error("other routes are the same version")
	}
	if r, _, err := f.Route("t", 6); err != nil || r.Seq != 21 {
		t.Errorf("position 6 is of range %v, %v", r, err)
	}
	for _, bad := range [][]Slice{nil, tile(id, 5), tile(id, 5, 4, end), tile(fence.TopicID{2}, end), tile(id, 5, end)[1:]} {
		if _, err := f.Learn("t", id, bad); !errors.Is(err, ErrOptions) {
			t.Errorf("learned %v: %v", bad, err)
		}
	}
	other := fence.TopicID{2}
	if two := learn(other, tile(other, end)); two == one {
		t.Error("another topic has the place of the one before")
	}
	if _, err := f.PlanBatchIn(one, BatchInfo{Count: 1}); !errors.Is(err, cp.ErrNoSuchTopic) {
		t.Errorf("the topic before: %v", err)
	}
}

package frontend

import (
	"errors"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func TestNewRefusesWhatNobodyMeans(t *testing.T) {
	good := Options{Self: "n1", Bits: dice()}
	for name, change := range map[string]func(*Options){
		"no self":             func(o *Options) { o.Self = "" },
		"no dice":             func(o *Options) { o.Bits = nil },
		"no brokers":          func(o *Options) { o.Brokers = []cp.NodeID{} },
		"negative rf":         func(o *Options) { o.ReplicationFactor = -1 },
		"negative size":       func(o *Options) { o.SegmentMaxBytes = -1 },
		"negative minDomains": func(o *Options) { o.MinDomains = -1 },
	} {
		o := good
		change(&o)
		if f, err := New(o); f != nil || !errors.Is(err, ErrOptions) {
			t.Errorf("%s: got %v, %v", name, f, err)
		}
	}
	f, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "journal", f.TakeJournal(), nil)
	want(t, "topics", len(f.Metadata().Topics()), 0)
}

// A replication factor above the number of brokers is clamped when a segment is placed.
func TestReplicationFactorIsClamped(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.ReplicationFactor = 5; o.Brokers = []cp.NodeID{"a", "b"} })
	w.n(1)
	want(t, "replicas", len(w.segment(seg(root(), 0)).Replicas), 2)
}

func TestCreateTopic(t *testing.T) {
	w := newWorld(t)
	_, err := w.f.CreateTopic(testTopic, 8, topicID(2), 1)
	wantErr(t, err, cp.ErrTopicExists)
	_, err = w.f.CreateTopic("../x", 8, topicID(2), 1)
	wantErr(t, err, cp.ErrInvalidName)
	_, err = w.f.CreateTopic("other", 0, topicID(2), 1)
	wantErr(t, err, cp.ErrInvalidBits)
	_, err = w.f.CreateTopic("other", 8, fence.TopicID{}, 1)
	wantErr(t, err, cp.ErrInvalidTopicID)
	id, err := w.f.CreateTopic("other", 8, topicID(2), 77)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "root range", id, fence.RangeID{Topic: topicID(2)})
	want(t, "created", w.f.Metadata().Topic("other").Created, 77)
	if seg := w.f.Metadata().ofID(topicID(2)).Head(id); seg != nil {
		t.Fatalf("a segment was opened: %+v", seg)
	}
}

func TestDeleteTopic(t *testing.T) {
	w := newWorld(t)
	w.n(2)
	old, err := w.f.Topic(testTopic)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.f.DeleteTopic(testTopic); err != nil {
		t.Fatal(err)
	}
	wantErr(t, w.f.DeleteTopic(testTopic), cp.ErrNoSuchTopic)
	_, err = w.f.PlanBatchIn(old, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrNoSuchTopic)
	if _, err := w.f.CreateTopic(testTopic, 8, topicID(2), 1); err != nil {
		t.Fatal(err)
	}
	_, err = w.f.PlanBatchIn(old, BatchInfo{Count: 1})
	wantErr(t, err, cp.ErrNoSuchTopic)
	d, err := w.f.PlanBatch(testTopic, BatchInfo{Count: 1})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "first offset of the new topic", d.First, 0)
	want(t, "its range", d.Range, fence.RangeID{Topic: topicID(2)})
}

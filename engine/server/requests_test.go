package server

import (
	"bytes"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/engine/wire"
)

// Everything a client can ask, once.
func TestEveryRequest(t *testing.T) {
	inBubble(t, Options{Name: "s"}, func(w *world) {
		c := w.dial()
		if r := c.hello(); r.Version != 1 || r.Log != "fake" || r.Server != "s" || r.Authenticate || r.MaxFrame != wire.MaxFrame || r.MaxRequests != 256 || r.IdleMs != 60000 {
			t.Errorf("hello: %+v", r)
		}
		p := c.producer("a")
		if r := want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(1, 200)...); r.First != 0 {
			t.Errorf("produce: %+v", r)
		}
		if r := want[*wire.ProduceReply](c, wire.KeyProduce, &wire.Produce{Producer: p}, frameOf(2, 300<<10)...); r.First != 1 || r.Last != 1 {
			t.Errorf("produce: %+v", r)
		}
		r := c.consumer("a")
		page := c.do(wire.KeyFetch, &wire.Fetch{Consumer: r})
		m, _ := page.msg.(*wire.Page)
		if m == nil || m.First != 0 || m.Next != 2 || m.Cursor != "2" || m.Mark != 5 || m.CaughtUp || m.Consumer != r {
			t.Errorf("fetch: %+v, %v", m, page.err)
		}
		if !bytes.Equal(page.raw, slices.Concat(frameOf(1, 200), frameOf(2, 300<<10))) {
			t.Errorf("fetch: %d bytes of frames", len(page.raw))
		}
		if m := want[*wire.Page](c, wire.KeyFetch, &wire.Fetch{Consumer: r}); !m.CaughtUp || m.Cursor != "2" {
			t.Errorf("fetch at the end: %+v", m)
		}
		if m := want[*wire.LagReply](c, wire.KeyLag, &wire.Lag{Consumer: r, Cursor: "0"}); m.Records != 2 {
			t.Errorf("lag of a cursor: %+v", m)
		}
		if m := want[*wire.LagReply](c, wire.KeyLag, &wire.Lag{Consumer: r}); m.Records != 0 {
			t.Errorf("lag: %+v", m)
		}
		want[*wire.Done](c, wire.KeyCommit, &wire.Commit{Topic: "a", Group: "g", Cursor: "2"})
		if m := want[*wire.DescribeTopicReply](c, wire.KeyDescribeTopic, &wire.DescribeTopic{Topic: "a"}); m.Topic.Name != "a" || len(m.Ranges) != 1 ||
			m.Ranges[0].NextOffset != 2 || m.Ranges[0].Segments[0].File != "f" || m.More {
			t.Errorf("describe: %+v", m)
		}
		if m := want[*wire.SplitRangeReply](c, wire.KeySplitRange, &wire.SplitRange{Topic: "a", Range: 3}); m.Left != 7 || m.Right != 8 {
			t.Errorf("split: %+v", m)
		}
		if m := want[*wire.MergeRangesReply](c, wire.KeyMergeRanges, &wire.MergeRanges{Topic: "a", A: 3, B: 4}); m.Range != 7 {
			t.Errorf("merge: %+v", m)
		}
		if m := want[*wire.RollTopicReply](c, wire.KeyRollTopic, &wire.Topic{Topic: "a"}); m.Segments != 3 {
			t.Errorf("roll: %+v", m)
		}
		if m := want[*wire.RouteReply](c, wire.KeyRoute, &wire.Topic{Topic: "a"}); m.Topic != "a" || !slices.Equal(m.Ranges, []uint32{3, 1}) || !slices.Equal(m.Last, []uint32{1<<31 - 1, 1<<32 - 1}) {
			t.Errorf("route: %+v", m)
		}
		c.refused(wire.CodeNoSuchTopic, wire.KeyRoute, &wire.Topic{Topic: "none"})
		policy := &wire.Policy{Name: "p", MaxAge: &wire.Bound{Setting: 2, Limit: 9}, SegmentMaxBytes: &wire.Bound{Setting: 1}}
		want[*wire.Done](c, wire.KeySetPolicy, &wire.SetPolicy{Policy: policy})
		if m := want[*wire.ListPoliciesReply](c, wire.KeyListPolicies, &wire.ListPolicies{}); len(m.Policies) != 1 || m.Policies[0].Name != "p" ||
			*m.Policies[0].MaxAge != *policy.MaxAge || *m.Policies[0].SegmentMaxBytes != *policy.SegmentMaxBytes || m.Policies[0].MaxBytes.Setting != 0 {
			t.Errorf("policies: %+v", m)
		}
		want[*wire.Done](c, wire.KeyBindPolicy, &wire.BindPolicy{Topic: "a", Policy: "p"})
		want[*wire.Done](c, wire.KeyDeletePolicy, &wire.DeletePolicy{Name: "p"})
		c.refused(wire.CodeNoSuchPolicy, wire.KeyBindPolicy, &wire.BindPolicy{Topic: "a", Policy: "p"})
		want[*wire.Done](c, wire.KeyCloseConsumer, &wire.CloseConsumer{Consumer: r})
		want[*wire.Done](c, wire.KeyCloseProducer, &wire.CloseProducer{Producer: p})
		if n := w.engine.openHandles(); n != 0 {
			t.Errorf("%d handles open after all were closed", n)
		}
		want[*wire.Done](c, wire.KeyDeleteTopic, &wire.Topic{Topic: "a"})
		c.refused(wire.CodeNoSuchTopic, wire.KeyDescribeTopic, &wire.DescribeTopic{Topic: "a"})
		c.nc.Close()
	})
}

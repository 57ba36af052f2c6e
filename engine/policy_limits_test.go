package engine

import (
	"math"
	"testing"

	"github.com/ringfence/ringfence/cp"
)

// What a policy may say is the same, in the same words, linked and through a server.
func TestLimitsOfPolicies(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	addr := serve(t, e)
	c := dial(t, addr)
	ctx := within(t)
	const ages, sizes = "3153600000000 ms (36500d), or off", "1152921504606846976 bytes (1048576 TiB), or off"
	for _, bad := range []struct {
		p    Policy
		says string
	}{
		{Policy{MaxAge: Limit(-1)}, "MaxAge is -1 ms: want 0 ms to " + ages},
		{Policy{MaxAge: Limit(math.MaxInt64)}, "MaxAge is 9223372036854775807 ms: want 0 ms to " + ages},
		{Policy{MaxBytes: Limit(-1)}, "MaxBytes is -1 bytes: want 0 bytes to " + sizes},
		{Policy{MaxBytes: Limit(math.MaxInt64)}, "MaxBytes is 9223372036854775807 bytes: want 0 bytes to " + sizes},
		{Policy{SegmentMaxAge: Limit(59_999)}, "SegmentMaxAge is 59999 ms: want 60000 ms (1m) to " + ages},
		{Policy{SegmentMaxAge: Limit(math.MaxInt64)}, "SegmentMaxAge is 9223372036854775807 ms: want 60000 ms (1m) to " + ages},
		{Policy{SegmentMaxBytes: Limit(1)}, "SegmentMaxBytes is 1 bytes: want 1048576 bytes (1 MiB) to " + sizes},
		{Policy{SegmentMaxBytes: Limit(MinSegmentBytes - 1)}, "SegmentMaxBytes is 1048575 bytes: want 1048576 bytes (1 MiB) to " + sizes},
		{Policy{SegmentMaxBytes: Limit(math.MinInt64)}, "SegmentMaxBytes is -9223372036854775808 bytes"},
		{Policy{SegmentMaxBytes: Bound{Setting: cp.Off, N: 1}}, "SegmentMaxBytes is off and has the value 1: only a limit has one"},
		{Policy{MaxAge: Bound{Setting: 9}}, "MaxAge has the setting 9: want a limit, off or inherit"},
	} {
		is(t, e.SetPolicy(ctx, "p", bad.p), ErrInvalidPolicy, `policy "p": invalid policy: `+bad.says)
		is(t, c.SetPolicy(ctx, "p", bad.p), ErrInvalidPolicy, `policy "p": invalid policy: `+bad.says)
	}
	if list, err := e.Policies(ctx); err != nil || len(list) > 0 {
		t.Errorf("defined: %v, %v", list, err)
	}
	must(t, c.SetPolicy(ctx, "least", Policy{MaxAge: Limit(0), MaxBytes: Limit(0), SegmentMaxAge: Limit(cp.MinSegmentAge), SegmentMaxBytes: Limit(MinSegmentBytes)}))
	must(t, c.SetPolicy(ctx, "most", Policy{MaxAge: Limit(cp.MaxPolicyAge), MaxBytes: Limit(cp.MaxPolicyBytes), SegmentMaxAge: Limit(cp.MaxPolicyAge), SegmentMaxBytes: Limit(cp.MaxPolicyBytes)}))
}

// A policy of an earlier version that is not allowed today still holds, after a restart
// from the log and, later, from a snapshot; its topics are written to and read.
func TestPolicyOfAnEarlierVersionIsLoaded(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{})
	old := Policy{SegmentMaxBytes: Limit(1)}
	must(t, e.change(within(t), cp.DefinePolicy{Name: "old", Policy: old}))
	must(t, e.CreateTopic(within(t), "t", TopicOptions{Policy: "old"}))
	var all []string
	for range 3 {
		list, err := e.Policies(within(t))
		if err != nil || list["old"] != old {
			t.Fatalf("policies %v, %v", list, err)
		}
		all = append(all, "v")
		produce(t, newProducer(t, e, ProducerOptions{Topic: "t"}), "k", "v")
		want(t, e, "t", all...)
		shut(t, e)
		e = open(t, dir, Options{})
	}
}

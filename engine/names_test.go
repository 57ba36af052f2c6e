package engine

import (
	"strings"
	"testing"

	"github.com/ringfence/ringfence/cp"
)

// M: a name that nothing can have is refused by every call that takes one, with an
// error that is short, and nothing comes of it.
func TestNamesAreRefused(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	ctx := within(t)
	long := strings.Repeat("n", 5000)
	for _, name := range []string{"", ".", "..", "a b", "a/b", "a\x00", "é", strings.Repeat("n", 256), long, strings.Repeat("n", 9<<20)} {
		calls := map[string]error{
			"create":   e.CreateTopic(ctx, name, TopicOptions{}),
			"delete":   e.DeleteTopic(ctx, name),
			"bind":     e.BindPolicy(ctx, name, ""),
			"describe": errOf(e.Describe(ctx, name)),
			"roll":     errOf(e.Roll(ctx, name)),
			"merge":    errOf(e.MergeRanges(ctx, name, 0, 1)),
			"producer": errOf(e.NewProducer(ProducerOptions{Topic: name})),
			"consumer": errOf(e.NewConsumer(ConsumerOptions{Topic: name})),
		}
		_, _, calls["split"] = e.SplitRange(ctx, name, 0)
		for call, err := range calls {
			is(t, err, ErrInvalidTopicName)
			if n := len(err.Error()); n > 400 {
				t.Errorf("%s: an error of %d bytes", call, n)
			}
		}
	}
	for _, name := range []string{strings.Repeat("n", 256), long} {
		is(t, errOf(e.NewConsumer(ConsumerOptions{Topic: "t", Group: name})), cp.ErrInvalidGroup)
		is(t, e.SetPolicy(ctx, name, Policy{}), cp.ErrInvalidPolicy)
		is(t, e.DeletePolicy(ctx, name), cp.ErrInvalidPolicy)
		is(t, e.BindPolicy(ctx, "t", name), cp.ErrInvalidPolicy)
		is(t, e.CreateTopic(ctx, "u", TopicOptions{Policy: name}), cp.ErrInvalidPolicy)
	}
	is(t, e.SetPolicy(ctx, "", Policy{}), cp.ErrInvalidPolicy)
	is(t, e.SetPolicy(ctx, "p", Policy{SpreadBy: cp.SpreadOver(long)}), cp.ErrInvalidPolicy)
	list, err := e.Topics(ctx)
	if err != nil || len(list) != 1 || list[0].Name != "t" {
		t.Errorf("topics %+v %v", list, err)
	}
	if p, err := e.Policies(ctx); err != nil || len(p) != 0 {
		t.Errorf("policies %v %v", p, err)
	}
	widest := strings.Repeat("n", cp.MaxName)
	must(t, e.SetPolicy(ctx, widest, Policy{}))
	must(t, e.CreateTopic(ctx, widest, TopicOptions{Policy: widest}))
	c := newConsumer(t, e, ConsumerOptions{Topic: widest, Group: widest})
	must(t, c.Commit(ctx))
}

func errOf[T any](_ T, err error) error { return err }

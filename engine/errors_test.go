package engine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/fence"
)

// An error names its topic once, whichever layers named it on the way, and no packages.
func TestTopicErrorNamesTheTopicOnce(t *testing.T) {
	inner := &frontend.TopicError{Topic: "a", Err: cp.ErrNoSuchTopic}
	seg := &store.SegmentError{Segment: fence.SegmentID{}, Topic: "a", File: "f.seg", Err: fmt.Errorf("%w at byte 7", store.ErrDamaged)}
	for _, tt := range []struct {
		err  error
		rng  int64
		is   error
		want string
	}{
		{inner, -1, ErrNoSuchTopic, `topic "a": no such topic`},
		{about("a", -1, inner), -1, ErrNoSuchTopic, `topic "a": no such topic`},
		{cp.ErrTopicExists, -1, ErrTopicExists, `topic "a": topic exists already`},
		{cp.ErrInvalidName, -1, ErrInvalidTopicName, `topic "a": invalid topic name: it has 1 to 255 letters, digits, '.', '_' and '-', and is neither '.' nor '..'`},
		{seg, 3, ErrDamaged, fmt.Sprintf(`topic "a", range 3: segment %s (f.seg): segment is damaged at byte 7`, seg.Segment)},
		{fmt.Errorf("reading: %w", seg), 3, ErrDamaged, fmt.Sprintf(`topic "a", range 3: reading: segment %s (f.seg): segment is damaged at byte 7`, seg.Segment)},
		{&frontend.TopicError{Topic: "b", Err: cp.ErrNoSuchRange}, -1, cp.ErrNoSuchRange, `topic "a": topic "b": no such range`},
		{errors.New("store"), -1, nil, `topic "a": store`},
	} {
		got := about("a", tt.rng, tt.err)
		if got.Error() != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
		if tt.is != nil && !errors.Is(got, tt.is) {
			t.Errorf("%s is no %v", got, tt.is)
		}
	}
	if got, want := api.CheckTopic("a b").Error(), about("a b", -1, cp.ErrInvalidName).Error(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

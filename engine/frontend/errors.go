package frontend

import (
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Errors of this package; test with [errors.Is]. Refusals of the control plane pass
// through wrapped (cp.ErrNoSuchTopic, cp.ErrNoSuchRange, cp.ErrRangeSealed, ...), and
// so does [fence.Sealed] from a fenced copy.
var (
	ErrStraddles           = errors.New("frontend: the batch belongs to more than one range")                // split it by range
	ErrUnroutable          = errors.New("frontend: no active range covers the position")                     // refresh the view, then retry
	ErrMetadataUnavailable = errors.New("frontend: the end of the range is not known yet")                   // retry; never "no more data"
	ErrUnreadable          = errors.New("frontend: a sealed segment does not hold what its length promises") // heal it, then retry
	ErrInvalidPosition     = errors.New("frontend: the position does not belong to this range or its topic") // forged, foreign, or past the end
	ErrStale               = errors.New("frontend: the view is behind the control plane")                    // refresh, then retry
	ErrReadFunc            = errors.New("frontend: the read function returned records it was not asked for") // a defect of the caller
	ErrOptions             = errors.New("frontend: invalid options")                                         // a defect of the caller
)

// TopicError is a refusal and the topic it concerns.
type TopicError struct {
	Topic string
	Err   error
}

func (e *TopicError) Error() string { return fmt.Sprintf("topic %q: %v", e.Topic, e.Err) }
func (e *TopicError) Unwrap() error { return e.Err }

// RangeError is a refusal and the range it concerns.
type RangeError struct {
	Range fence.RangeID
	Err   error
}

func (e *RangeError) Error() string { return fmt.Sprintf("range %s: %v", e.Range, e.Err) }
func (e *RangeError) Unwrap() error { return e.Err }

func topicErr(name string, err error) error      { return &TopicError{Topic: name, Err: err} }
func rangeErr(id fence.RangeID, err error) error { return &RangeError{Range: id, Err: err} }

// Retryable says whether the same call can succeed later without anybody changing
// its arguments: after a refresh of the view, an answered fence, or a while.
func Retryable(err error) bool {
	for _, target := range []error{ErrUnroutable, ErrStraddles, ErrMetadataUnavailable, ErrUnreadable, ErrStale, fence.ErrFenced} {
		if errors.Is(err, target) {
			return true
		}
	}
	return cp.Retryable(err)
}

package engine

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/cp/host"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/segfile/disk"
)

// about adds the topic to an error that does not name one yet.
func about(topic string, rng int64, err error) error {
	if err == nil {
		return nil
	}
	if t := (*TopicError)(nil); errors.As(err, &t) {
		return err
	}
	switch {
	case errors.Is(err, cp.ErrRangeSealed):
		err = fmt.Errorf("%w: it was split or merged, and other ranges have its keys", err)
	case errors.Is(err, ErrInvalidTopicName):
		err = api.InvalidName(err)
	}
	return &TopicError{Topic: topic, Range: rng, Err: fromHost(err)}
}

// inUse is an ErrLocked that says so once: which of a directory's locks it was matters
// to nobody.
type inUse struct{ cause error }

func (e *inUse) Error() string   { return ErrLocked.Error() }
func (e *inUse) Unwrap() []error { return []error{ErrLocked, e.cause} }

// metaDamage is an ErrDamaged of what is no segment.
type metaDamage struct{ cause error }

func (e *metaDamage) Error() string {
	text := strings.ReplaceAll(e.cause.Error(), "cp/host: ", "")
	if errors.Is(e.cause, host.ErrDamaged) {
		text += "; without the metadata nothing can be read: put the directories meta and log back, both from one copy"
	}
	return text
}
func (e *metaDamage) Unwrap() []error { return []error{ErrDamaged, e.cause} }

// fromHost gives an error of the metadata its meaning for callers.
func fromHost(err error) error {
	for _, c := range []struct{ is, means error }{
		{host.ErrUnknownOutcome, ErrTimeout},
		{host.ErrNoSpace, ErrOutOfSpace},
		{disk.ErrNoSpace, ErrOutOfSpace},
		{syscall.ENOSPC, ErrOutOfSpace},
		{syscall.EDQUOT, ErrOutOfSpace},
		{host.ErrLocked, ErrLocked},
		{host.ErrWiped, ErrMismatch},
		{host.ErrRolledBack, ErrMismatch},
		{host.ErrFailed, ErrStorage},
		{host.ErrClosed, ErrClosed},
	} {
		if errors.Is(err, c.is) && !errors.Is(err, c.means) {
			err = fmt.Errorf("%w: %w", c.means, err)
		}
	}
	if errors.Is(err, host.ErrDamaged) && !errors.Is(err, ErrDamaged) {
		err = &metaDamage{err}
	}
	return err
}

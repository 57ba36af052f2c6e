package engine

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/cp/host"
	"github.com/ringfence/ringfence/engine/store"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// Test with errors.Is. Every error says in words what happened and where.
var (
	ErrNoSuchTopic      = cp.ErrNoSuchTopic                              // create it first
	ErrTopicExists      = cp.ErrTopicExists                              // use it, or delete it first
	ErrInvalidTopicName = cp.ErrInvalidName                              // letters, digits, '.', '_' and '-', at most 255 bytes
	ErrRecordTooLarge   = errors.New("record too large")                 // raise BatchBytes, or split the record
	ErrOutOfSpace       = store.ErrOutOfSpace                            // free space; the engine goes on by itself
	ErrStorage          = store.ErrStorage                               // the record may or may not be stored; see the log
	ErrDamaged          = store.ErrDamaged                               // the message names file and byte
	ErrLocked           = store.ErrLocked                                // another process has the directory
	ErrClosed           = errors.New("closed")                           // the engine, producer or consumer was closed
	ErrOverloaded       = errors.New("too much is waiting")              // retry after acknowledgements
	ErrBatchFull        = record.ErrBatchFull                            // send it and make a new one
	ErrBatchSent        = errors.New("batch was sent or discarded")      // make a new one
	ErrHalted           = errors.New("producer stopped")                 // a record was not stored: send all again with a new one of its ID
	ErrTimeout          = errors.New("the outcome is not known in time") // it may still take effect
)

// TopicError is an error with the topic, and the range if there is one, that it is about.
type TopicError struct {
	Topic string
	Range int64 // -1: none
	Err   error
}

func (e *TopicError) Error() string {
	if e.Range < 0 {
		return fmt.Sprintf("topic %q: %s", e.Topic, e.reason())
	}
	return fmt.Sprintf("topic %q, range %d: %s", e.Topic, e.Range, e.reason())
}

// reason is what Err says, without the topic, which the errors of the layers below
// name too, and without the names of the packages these are from.
func (e *TopicError) reason() string {
	topic := fmt.Sprintf("topic %q", e.Topic)
	text := ": " + e.Err.Error()
	for _, layer := range []string{topic, "cp", "frontend", "store", "segfile", "record"} {
		text = strings.ReplaceAll(text, ": "+layer+": ", ": ")
	}
	text = strings.ReplaceAll(text, ": "+topic+", ", ": ")
	return strings.TrimPrefix(text, ": ")
}

func (e *TopicError) Unwrap() error { return e.Err }

// about adds the topic to an error that does not name one yet.
func about(topic string, rng int64, err error) error {
	if err == nil {
		return nil
	}
	if t := (*TopicError)(nil); errors.As(err, &t) {
		return err
	}
	switch {
	case errors.Is(err, cp.ErrNoSuchTopic):
		err = fmt.Errorf("%w: create it first", err)
	case errors.Is(err, ErrInvalidTopicName):
		err = invalidName(err)
	}
	return &TopicError{Topic: topic, Range: rng, Err: fromHost(err)}
}

// fromHost gives an error of the metadata its meaning for callers.
func fromHost(err error) error {
	for _, c := range []struct{ is, means error }{
		{host.ErrUnknownOutcome, ErrTimeout},
		{host.ErrNoSpace, ErrOutOfSpace},
		{disk.ErrNoSpace, ErrOutOfSpace},
		{syscall.ENOSPC, ErrOutOfSpace},
		{syscall.EDQUOT, ErrOutOfSpace},
		{host.ErrLocked, ErrLocked},
		{host.ErrDamaged, ErrDamaged},
		{host.ErrWiped, ErrMismatch},
		{host.ErrRolledBack, ErrMismatch},
		{host.ErrFailed, ErrStorage},
		{host.ErrClosed, ErrClosed},
	} {
		if errors.Is(err, c.is) && !errors.Is(err, c.means) {
			err = fmt.Errorf("%w: %w", c.means, err)
		}
	}
	return err
}

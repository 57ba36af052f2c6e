package api

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/segfile/record"
)

// Test with errors.Is. Every error says in words what happened and where.
var (
	ErrNoSuchTopic      = cp.ErrNoSuchTopic                                   // create it first
	ErrTopicExists      = cp.ErrTopicExists                                   // use it, or delete it first
	ErrInvalidTopicName = cp.ErrInvalidName                                   // letters, digits, '.', '_' and '-', at most 255 bytes
	ErrNoSuchGroup      = cp.ErrNoSuchGroup                                   // a group is there once it has committed or had members
	ErrGroupInUse       = errors.New("group has members")                     // stop them first
	ErrRangeMoved       = errors.New("range is another member's now")         // what was not committed of it is read again there
	ErrMemberReplaced   = errors.New("another process joined under the name") // give each process a name of its own
	ErrNoSuchPolicy     = errors.New("no such policy")                        // define it first
	ErrPolicyInUse      = errors.New("policy in use")                         // bind the topics that it names elsewhere
	ErrRecordTooLarge   = errors.New("record too large")                      // raise BatchBytes, or split the record
	ErrOutOfSpace       = errors.New("file system is full: free space on it") // the engine goes on by itself
	ErrStorage          = errors.New("storage failed")                        // the record may or may not be stored; see the log
	ErrDamaged          = errors.New("segment is damaged")                    // the message names file and byte
	ErrLocked           = errors.New("directory is in use by another process")
	ErrClosed           = errors.New("closed")                                  // the engine, producer or consumer was closed
	ErrOverloaded       = errors.New("too much is waiting")                     // retry after acknowledgements
	ErrBatchFull        = record.ErrBatchFull                                   // send it and make a new one
	ErrBatchSent        = errors.New("batch was sent or discarded")             // make a new one
	ErrHalted           = errors.New("producer stopped")                        // a record was not stored: send all again with a new one of its ID
	ErrTimeout          = errors.New("the outcome is not known in time")        // it may still take effect
	ErrMismatch         = errors.New("log and metadata do not belong together") // put both back from one copy
)

// Refusals about users; test with errors.Is.
var (
	ErrNoSuchUser      = cp.ErrNoSuchUser                   // make it first
	ErrUserExists      = cp.ErrUserExists                   // give it another password, or delete it first
	ErrInvalidUser     = cp.ErrInvalidUser                  // 1 to 255 bytes of UTF-8 without control characters
	ErrInvalidPassword = errors.New("password not allowed") // 12 to 1024 bytes
	ErrInvalidGrant    = cp.ErrInvalidGrant                 // the operation is not one of the kind's, or the pattern is none
	ErrNoSuchGrant     = errors.New("no such grant")        //
	ErrNoSuchToken     = errors.New("no such token")        //
	ErrQuota           = errors.New("batch over the quota") // it has more than the user may send in a second: make smaller ones
)

// Refusals of cursors; test with errors.Is.
var (
	ErrInvalidCursor = errors.New("cursor is not one of this program's")   // start over from a group, a time, the start or the end
	ErrForeignCursor = errors.New("cursor belongs to another topic")       // a topic made anew under the same name is another one
	ErrCursorPastEnd = errors.New("cursor lies past what the topic holds") // the topic was restored from a backup, or the cursor is not from here
	ErrCursorOfOther = errors.New("cursor was made with other records")    // the topic was restored from a backup, and has gone on since
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

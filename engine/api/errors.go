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
	ErrNoSuchTopic      = cp.ErrNoSuchTopic                                                     // create it first
	ErrTopicExists      = cp.ErrTopicExists                                                     // use it, or delete it first
	ErrInvalidTopicName = cp.ErrInvalidName                                                     // letters, digits, '.', '_' and '-', at most 255 bytes
	ErrNoSuchGroup      = cp.ErrNoSuchGroup                                                     // a group is there once it has committed or had members
	ErrGroupInUse       = errors.New("group has members")                                       // stop them first
	ErrRangeMoved       = errors.New("range was taken from this member")                        // by another one, or the server began anew: what was not committed of it is read again there
	ErrMemberReplaced   = errors.New("another process joined under the name")                   // give each process a name of its own
	ErrNoSuchRange      = cp.ErrNoSuchRange                                                     // see Describe for those that there are
	ErrRangeSealed      = cp.ErrRangeSealed                                                     // it was split or merged: its children have its keys
	ErrNotBuddies       = cp.ErrNotBuddies                                                      // only what was one range is merged to one
	ErrCannotSplit      = cp.ErrCannotSplit                                                     // it has one key position
	ErrInvalidBits      = cp.ErrInvalidBits                                                     // 1 to 32
	ErrInvalidPolicy    = cp.ErrInvalidPolicy                                                   // its name, or a limit of it
	ErrInvalidGroup     = cp.ErrInvalidGroup                                                    // 1 to 255 bytes of UTF-8 without control characters
	ErrLimit            = cp.ErrLimit                                                           // there are as many of these as there can be
	ErrNoSuchPolicy     = errors.New("no such policy")                                          // define it first
	ErrPolicyInUse      = errors.New("policy in use")                                           // bind the topics that it names elsewhere
	ErrRecordTooLarge   = errors.New("record too large")                                        // raise BatchBytes, or split the record
	ErrOutOfSpace       = errors.New("file system is full up to the reserve: free space on it") // the engine goes on by itself
	ErrStorage          = errors.New("storage failed")                                          // the record may or may not be stored; see the log
	ErrDamaged          = errors.New("segment is damaged")                                      // the message names file and byte
	ErrLocked           = errors.New("directory is in use by another process")
	ErrClosed           = errors.New("closed")                                  // the engine, producer or consumer was closed
	ErrOverloaded       = errors.New("too much is waiting")                     // retry after acknowledgements
	ErrBatchFull        = record.ErrBatchFull                                   // send it and make a new one
	ErrBatchSent        = errors.New("batch was sent or discarded")             // make a new one
	ErrHalted           = errors.New("producer stopped")                        // a record was not stored: send all again with a new one of its ID
	ErrChanged          = errors.New("frame was changed while it was written")  // it is not stored: leave its memory alone until the answer
	ErrTimeout          = errors.New("the outcome is not known in time")        // it may still take effect
	ErrMismatch         = errors.New("log and metadata do not belong together") // put both back from one copy
)

// Refusals about users; test with errors.Is.
var (
	ErrNoSuchUser        = cp.ErrNoSuchUser                               // make it first
	ErrUserExists        = cp.ErrUserExists                               // give it another password, or delete it first
	ErrInvalidUser       = cp.ErrInvalidUser                              // 1 to 255 bytes of UTF-8 without control characters
	ErrInvalidPassword   = errors.New("password not allowed")             // 12 to 1024 bytes
	ErrInvalidGrant      = cp.ErrInvalidGrant                             // the operation is not one of the kind's, or the pattern is none
	ErrNoSuchGrant       = errors.New("no such grant")                    //
	ErrNoSuchToken       = errors.New("no such token")                    //
	ErrLastAdministrator = errors.New("nobody would be an administrator") // make one first
	ErrInvalidToken      = cp.ErrInvalidToken                             // its name, or it would have expired already
	ErrQuota             = errors.New("batch over the quota")             // of servers that refuse one with more than the user may send in a second: make smaller ones
)

// Refusals of cursors; test with errors.Is.
var (
	ErrInvalidCursor = errors.New("cursor is not one of this program's")   // start over from a group, a time, the start or the end
	ErrForeignCursor = errors.New("cursor belongs to another topic")       // a topic made anew under the same name is another one
	ErrCursorPastEnd = errors.New("cursor lies past what the topic holds") // the topic was restored from a backup, or the cursor is not from here
	ErrNotASource    = cp.ErrNotASource                                    // it names a range that the topic does not read from there
	ErrCursorOfOther = errors.New("cursor was made with other records")    // the topic was restored from a backup, and has gone on since
)

// TopicError is an error with the topic, and the range if there is one, that it is about.
type TopicError struct {
	Topic string
	Range int64 // -1: none
	Err   error
}

func (e *TopicError) Error() string {
	if topic := fmt.Sprintf("topic %q", e.Topic); e.Range < 0 && strings.HasPrefix(plain(e.Err), topic+", ") {
		return plain(e.Err) // with the range
	} else if e.Range < 0 {
		return topic + ": " + e.reason()
	}
	return fmt.Sprintf("topic %q, range %d: %s", e.Topic, e.Range, e.reason())
}

// reason is what Err says, without the topic, which the errors of the layers below
// name too, and without the names of the packages these are from.
func (e *TopicError) reason() string {
	topic := fmt.Sprintf("topic %q", e.Topic)
	text := strings.ReplaceAll(": "+plain(e.Err), ": "+topic+": ", ": ")
	text = strings.ReplaceAll(text, ": "+topic+", ", ": ")
	return strings.TrimPrefix(text, ": ")
}

func (e *TopicError) Unwrap() error { return e.Err }

// Of adds what it is about to an error: a user, say, and the name. An error that says so
// already stays as it is.
//
// It is for the other packages of this module alone.
func Of(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return &ofError{fmt.Sprintf("%s %q", what, Abridged(name)), err}
}

type ofError struct {
	what string
	err  error
}

func (e *ofError) Error() string {
	return e.what + ": " + strings.TrimPrefix(plain(e.err), e.what+": ")
}

func (e *ofError) Unwrap() error { return e.err }

// plain is what an error says, without the names of the packages it is from.
func plain(err error) string {
	text := ": " + err.Error()
	for _, layer := range []string{"cp", "frontend", "store", "segfile", "record"} {
		text = strings.ReplaceAll(text, ": "+layer+": ", ": ")
	}
	return strings.TrimPrefix(text, ": ")
}

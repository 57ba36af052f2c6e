package cp

import (
	"errors"
	"fmt"
)

// Why a command is refused; test with [errors.Is]. A refusal leaves the state
// unchanged. Each has a number that never changes, because replies carry it.
var (
	ErrUnknownCommand  = code(1, "unknown command")                                      // sent by newer software, or not a command
	ErrNewerCommand    = code(2, "command in a newer format")                            // upgrade this node
	ErrMalformed       = code(3, "malformed command")                                    // damaged, or over a limit of its encoding
	ErrMigrating       = code(4, "the topic is moving to another vnode", retry)          // try again
	ErrInvalidName     = code(5, "invalid topic name")                                   // see [ValidTopicName]
	ErrTopicExists     = code(6, "topic exists already")                                 //
	ErrInvalidBits     = code(7, "keyspace bits must be 1 to 32")                        //
	ErrInvalidTopicID  = code(8, "topic identity is zero or in use")                     // draw another one
	ErrNoSuchTopic     = code(9, "no such topic")                                        //
	ErrNoSuchRange     = code(10, "no such range")                                       //
	ErrNoSuchSegment   = code(11, "no such segment")                                     //
	ErrRangeSealed     = code(12, "the range is sealed", retry)                          // refresh the view, then route to its children
	ErrSegmentActive   = code(13, "the segment is active")                               // fence and seal it first
	ErrActiveSegment   = code(14, "the range has an active segment", retry)              // adopt it; before a split or merge, fence and seal it
	ErrSegmentExists   = code(15, "segment exists already", retry)                       // refresh the view, then adopt the head
	ErrSegmentOverlap  = code(16, "segment does not start where the range ends", retry)  // start at the reply's NextOffset
	ErrSequenceUsed    = code(17, "segment sequence was used before", retry)             // use the reply's NextSequence or a later one
	ErrCannotSplit     = code(18, "range is one position wide and cannot split")         //
	ErrDifferentTopic  = code(19, "ranges belong to different topics")                   //
	ErrNotBuddies      = code(20, "ranges are not the two halves of one block")          //
	ErrAlreadySealed   = code(21, "segment is sealed with another length")               // see [AlreadySealed]
	ErrInvalidReplicas = code(22, "replica set is empty, too long or has a bad name")    //
	ErrInvalidLength   = code(23, "segment would end past the last offset")              //
	ErrInvalidGroup    = code(24, "invalid group name")                                  // see [ValidName]
	ErrStaleGeneration = code(25, "the group has a newer generation")                    // join the group again
	ErrNotASource      = code(26, "position names a range that is not an ancestor")      // the cursor belongs elsewhere
	ErrPastEnd         = code(27, "position lies past the end of its source")            //
	ErrInvalidPolicy   = code(28, "invalid policy")                                      //
	ErrUnsupported     = code(29, "exported topic has a newer format")                   // upgrade the destination first
	ErrInvalidExport   = code(30, "exported topic is damaged")                           //
	ErrLimit           = code(31, "a limit of the metadata is reached")                  // see the limits of this package
	ErrNoSuchGroup     = code(32, "no such group")                                       //
	ErrNoVnode         = code(33, "the ring has no vnode")                               //
	ErrVnodeToken      = code(34, "vnode token is out of range")                         //
	ErrVnodeExists     = code(35, "vnode is in the ring already")                        //
	ErrTokenTaken      = code(36, "vnode token is taken")                                //
	ErrNoSuchVnode     = code(37, "no such vnode")                                       //
	ErrNoBrokers       = code(38, "no nodes to place replicas on")                       //
	ErrReplication     = code(39, "replication factor must be 1 or more")                //
	ErrFewDomains      = code(40, "replicas would not span enough failure domains")      // add nodes elsewhere, or relax the policy
	ErrInvalidSegment  = code(41, "segment sequence is out of range")                    //
	ErrInvalidUser     = code(42, "invalid user name")                                   // see [ValidName]
	ErrUserExists      = code(43, "user exists already")                                 //
	ErrNoSuchUser      = code(44, "no such user")                                        //
	ErrInvalidHash     = code(45, "the hash of the password is too long")                //
	ErrInvalidGrant    = code(46, "invalid grant")                                       // see [Grant.Valid]
	ErrInvalidToken    = code(47, "invalid token")                                       // no identity, or a bad name or expiry
	ErrTokenExists     = code(48, "token exists already")                                // draw another one
	ErrSnapshot        = errors.New("cp: snapshot is damaged or not one of this format") //
	ErrNewerSnapshot   = errors.New("cp: snapshot is in a newer format")                 // upgrade this node
)

// codeError is a refusal with its number in the reply format.
type codeError struct {
	code  uint16
	text  string
	retry bool
}

func (e *codeError) Error() string { return "cp: " + e.text }

type codeOption func(*codeError)

func retry(e *codeError) { e.retry = true }

// byCode finds the refusal that a reply's number stands for.
var byCode = map[uint16]*codeError{}

func code(n uint16, text string, opts ...codeOption) error {
	e := &codeError{code: n, text: text}
	for _, o := range opts {
		o(e)
	}
	if byCode[n] != nil {
		panic(fmt.Sprintf("cp: two refusals with number %d", n))
	}
	byCode[n] = e
	return e
}

// AlreadySealed is the refusal to seal a segment with another length than the
// one recorded, which is Length. It is an [ErrAlreadySealed].
type AlreadySealed struct {
	Length uint64
}

func (e AlreadySealed) Error() string {
	return fmt.Sprintf("cp: segment is sealed with another length: %d records", e.Length)
}

// Is makes errors.Is(err, ErrAlreadySealed) hold.
func (e AlreadySealed) Is(target error) bool { return target == ErrAlreadySealed }

// UnknownError is a refusal by newer software that this one has no name for.
type UnknownError struct {
	Code uint16
}

func (e UnknownError) Error() string { return fmt.Sprintf("cp: refused with unknown code %d", e.Code) }

// Code is the stable number of a refusal of this package, 0 for anything else.
func Code(err error) uint16 {
	var as AlreadySealed
	var unknown UnknownError
	var c *codeError
	switch {
	case errors.As(err, &as):
		return Code(ErrAlreadySealed)
	case errors.As(err, &unknown):
		return unknown.Code
	case errors.As(err, &c):
		return c.code
	}
	return 0
}

// Retryable says whether the same intent can succeed later without anybody
// changing it: after a refresh of the view, or after a while.
func Retryable(err error) bool {
	var c *codeError
	return errors.As(err, &c) && c.retry
}

package server

import (
	"context"
	"os"

	"github.com/ringfence/ringfence/engine/api"
)

// Engine is what a server serves. Its methods are called by many goroutines at a time.
// Their errors are those of package engine/api, or wrap them; what they say is what
// clients are told.
type Engine interface {
	// Log is the identity of the log, for clients to know where their cursors are from.
	Log() string

	CreateTopic(ctx context.Context, name string, o api.TopicOptions) error
	DeleteTopic(ctx context.Context, name string) error
	// TopicPage lists the topics behind a name that are wanted, by name: at most limit of
	// them, and whether there are more.
	TopicPage(ctx context.Context, after string, limit int, wanted func(name string) bool) (list []api.TopicInfo, more bool, err error)
	// DescribeFrom tells of a topic from a place on, without its groups: all the rest, or some
	// limit ranges and segments and where the next ones begin. Only the rest comes with the
	// totals of the topic.
	DescribeFrom(ctx context.Context, name string, at TopicPlace, limit int) (d api.TopicDetail, next *TopicPlace, err error)
	SplitRange(ctx context.Context, topic string, seq uint32) (left, right uint32, err error)
	MergeRanges(ctx context.Context, topic string, a, b uint32) (uint32, error)
	Roll(ctx context.Context, topic string) (int, error)
	// Routes tells where producers send their records now. It does not wait.
	Routes(topic string) (api.Routes, error)

	SetPolicy(ctx context.Context, name string, p api.Policy) error
	DeletePolicy(ctx context.Context, name string) error
	ForgetPolicy(ctx context.Context, name string) error // also while topics are bound to it
	Policies(ctx context.Context) (map[string]api.Policy, error)
	BindPolicy(ctx context.Context, topic, policy string) error

	api.Access // who may do what

	// Register lets frames be lent from memory that another process can write, in whole
	// blocks of 4,096 bytes. unregister waits until no loan is out; then the memory may go.
	Register(mem []byte) (unregister func() error, err error)
	// OpenProducer opens a producer; with id 0 the engine draws one. The records of an
	// unnumbered one have no sequences. One that is open under the id is given up first; if
	// what that has sent is not on the disk, or failed, when ctx ends, the answer is a
	// *wire.Error that says to try again.
	OpenProducer(ctx context.Context, topic string, id uint64, unnumbered bool) (Producer, error)
	OpenConsumer(topic, group string, from api.From) (Consumer, error)
	// CommitCursor makes a cursor a group's position, with reset also where that moves
	// the group back.
	CommitCursor(ctx context.Context, topic, group, cursor string, reset bool) error
	// CursorLag is how many records are stored behind a cursor.
	CursorLag(topic, cursor string) (uint64, error)
	// CursorRanges tells the same for each range that the cursor has not finished.
	CursorRanges(topic, cursor string) ([]api.GroupRange, error)

	Groups(ctx context.Context, topic string) ([]string, error) // by name
	// DescribeGroup may answer both: an api.ErrDamaged, and what can be told all the same.
	DescribeGroup(ctx context.Context, topic, group string) (api.GroupInfo, error)
	DeleteGroup(ctx context.Context, topic, group string) error
	MemberEngine
}

// TopicPlace is a place in the list of a topic's ranges, each with its segments.
type TopicPlace struct{ Range, Segment uint32 }

// MemberEngine is what groups with members ask of an engine.
type MemberEngine interface {
	// Incarnation is higher than it ever was before the engine was opened.
	Incarnation() uint64
	// Unread tells which ranges a group may read, in ascending order: those that it has
	// not finished, while it has finished all that they come from. Another identity is
	// another topic of the name. It does not block.
	Unread(topic, group string) (identity string, ranges []uint32, err error)
	// FenceGroup makes a group, if there is none, and has commits of lower generations
	// refused from now on.
	FenceGroup(ctx context.Context, topic, group string, generation uint64) error
	// OpenMember opens a consumer of some ranges, from where the group is in them, or
	// behind that from where a cursor is, "" for none.
	OpenMember(topic, group string, ranges []uint32, cursor string) (Consumer, error)
	// CommitRanges makes a cursor the group's place in the ranges that it names. That
	// never moves the group back.
	CommitRanges(ctx context.Context, topic, group, cursor string, generation uint64) error
}

// Producer stores the frames of one producer. One goroutine calls NewFrame, Lend and Send,
// and no others once Close was called.
type Producer interface {
	ID() uint64
	MaxFrame() int // bytes of the largest frame it takes
	// NewFrame returns memory for a frame of size bytes, and waits for it until ctx ends.
	NewFrame(ctx context.Context, size int) (Frame, error)
	// Lend is a frame that lies in registered memory already, at the begin of a block, with
	// its last block to itself. release is called once, before done is or by Discard, when
	// nothing uses the memory any more. Where that was changed before, the frame fails with
	// an api.ErrChanged.
	Lend(frame []byte, release func()) (Frame, error)
	// Close returns when every frame that was sent is durable or failed, or when ctx ends;
	// then it may be called again.
	Close(ctx context.Context) error
}

// Frame is memory of the engine for one record frame. It must be sent or discarded.
type Frame interface {
	Bytes() []byte
	// Header is that of the filled frame: what Send goes by, also where somebody changes
	// memory that was lent.
	Header() []byte
	// Send verifies the frame and hands it over. done is called once, by any goroutine,
	// when the records are durable or failed, and does not block. After an error the
	// frame was not sent: it is to be discarded, and done is never called. With lead Send
	// may wait until done was called, and so do the engine's waiting for the disk.
	Send(ctx context.Context, lead bool, done func(api.Placement, error)) error
	Discard()
}

// Consumer reads a topic. One goroutine uses it at a time.
type Consumer interface {
	// FetchFrames returns the next frames, about maxBytes of them but one at least where
	// there is one. It does not wait. With stored they may be those of a file. The frames
	// are valid until the next call.
	FetchFrames(maxBytes int, stored bool) (FramePage, error)
	// Changed returns a channel that is closed when there may be more than a call of
	// FetchFrames after this one finds.
	Changed() <-chan struct{}
	Cursor() string // behind the last page
	Close() error
}

// FramePage is a page of stored frames of one range.
type FramePage struct {
	Range uint32
	// First and Next are the offsets of the first record to take from Frames and of the
	// one behind the last. The first frame may begin before First.
	First, Next uint64
	Mark        uint32 // of the segment, for cursors inside of the page
	Skips       []api.Skip
	CaughtUp    bool     // there was nothing more
	Finished    []uint32 // ranges of a member that have come to their ends for good
	Cursor      string   // behind the page
	Frames      [][]byte // each one or more whole frames, verified, without salt and padding

	// In place of Frames: Length bytes of File from Position on, as they are stored under
	// Salt. The server closes File.
	File             *os.File
	Position, Length int64
	Salt             uint64
	// Give says whether File may be given to a client that may read the topic, for good. It
	// is called, if at all, before the consumer's next call.
	Give func() bool
}

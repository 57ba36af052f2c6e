package frontend

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// Instant is a point on a monotonic clock, in nanoseconds.
type Instant = fence.Instant

// Roll names a write head that must be closed: its segment, the primary to ask for
// the fence, and the segment's first offset.
type Roll = fence.Roll

// Attributes are the labels of a node that placement may spread over: rack, zone.
type Attributes = cp.Attributes

// Options configure a [Frontend]. The zero value of a field is what a single node
// runs with in production, but for Self and Bits, which must be given.
type Options struct {
	Self   cp.NodeID
	Writer uint64        // incarnation of this node's process, recorded in the segments it opens
	Bits   func() uint64 // the caller's dice: every call gives 64 fresh random bits, to several callers at once too

	Brokers           []cp.NodeID // nodes that new segments are placed on; nil is Self alone
	ReplicationFactor int         // 0 is 1; clamped to the number of brokers when a segment is placed
	SegmentMaxBytes   int64       // bytes after which a head is owed a roll, unless the topic's policy says otherwise; 0 is 64 MiB

	Attributes map[cp.NodeID]Attributes
	SpreadBy   string // attribute that replicas spread over; "" is none
	MinDomains int    // distinct values of it that replicas should span; 0 asks for nothing
	Hard       bool   // refuse to open a segment that would span fewer, instead of counting a violation

	// View is the metadata to start from; zero is one empty vnode. The frontend owns
	// its states from then on.
	View View

	// Command proposes a change to the control plane and waits for the answer. Topic
	// is the name, or "" where this frontend knows the topic by identity alone. It may
	// block and is called without any lock. A reply without an error means that the
	// command is committed. Nil applies commands to the view itself: a control plane
	// of this one frontend, in memory.
	Command func(topic string, cmd cp.Command) cp.Reply

	// Commands, if set, proposes several changes of one topic to be applied in order,
	// and answers each. It is called like Command.
	Commands func(topic string, cmds ...cp.Command) []cp.Reply

	// Fetch reads what the control plane has of one topic now: a state that nobody else
	// changes, such as a cp.State.Clone, which has the topic if it exists. The frontend
	// takes the topic over and nothing else. It is called, like Command, when a refusal
	// shows that the view is behind, and after a split or merge. Nil leaves the former to
	// the next refresh, and is only for a frontend that learns of every command: it is
	// the only one, or gets those of others by ApplyCommitted.
	Fetch func(topic string) (*cp.State, error)
}

func (o Options) withDefaults() (Options, error) {
	if o.Brokers == nil {
		o.Brokers = []cp.NodeID{o.Self}
	}
	if o.ReplicationFactor == 0 {
		o.ReplicationFactor = 1
	}
	if o.SegmentMaxBytes == 0 {
		o.SegmentMaxBytes = 64 << 20
	}
	switch {
	case o.Self == "":
		return o, fmt.Errorf("%w: Self is empty", ErrOptions)
	case o.Bits == nil:
		return o, fmt.Errorf("%w: Bits is nil", ErrOptions)
	case len(o.Brokers) == 0:
		return o, fmt.Errorf("%w: Brokers is empty", ErrOptions)
	case o.ReplicationFactor < 1:
		return o, fmt.Errorf("%w: ReplicationFactor is %d, want 1 or more", ErrOptions, o.ReplicationFactor)
	case o.SegmentMaxBytes < 1:
		return o, fmt.Errorf("%w: SegmentMaxBytes is %d, want 1 or more", ErrOptions, o.SegmentMaxBytes)
	case o.MinDomains < 0:
		return o, fmt.Errorf("%w: MinDomains is %d, want 0 or more", ErrOptions, o.MinDomains)
	}
	return o, nil
}

// Frontend is the routing and fencing state of one entry point; see the package
// comment. Use [New].
type Frontend struct {
	opts  Options       // set by New, never again; Brokers and Attributes are only its start
	epoch atomic.Uint64 // source of topic versions

	meta    sync.RWMutex // guards the following; taken before a shard's lock; never held across a call out
	view    View
	journal []cp.Command      // in the order they were applied here
	fetched map[string][]byte // topics as they were fetched last, since the journal was taken
	journey bool              // the journal is on
	brokers []cp.NodeID       // replaced, never changed in place
	labels  map[cp.NodeID]Attributes

	names  directory
	shards [shardCount]shard
}

// New returns a frontend with the given view, and refuses options that no caller
// can mean. It touches neither disk nor network.
func New(o Options) (*Frontend, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	f := &Frontend{opts: o, brokers: slices.Clone(o.Brokers), labels: maps.Clone(o.Attributes)}
	f.names.init()
	for i := range f.shards {
		f.shards[i].init()
	}
	if o.View.isZero() {
		o.View, err = NewView(1)
		if err != nil {
			return nil, err
		}
	}
	f.meta.Lock()
	defer f.meta.Unlock()
	f.view = o.View
	f.resyncAll()
	return f, nil
}

// SetBrokers replaces the nodes that segments opened from now on are placed on. An
// empty list is refused: a membership that knows nobody is a membership that failed.
func (f *Frontend) SetBrokers(brokers []cp.NodeID) error {
	if len(brokers) == 0 {
		return fmt.Errorf("%w: the list of brokers is empty", ErrOptions)
	}
	f.meta.Lock()
	defer f.meta.Unlock()
	f.brokers = slices.Clone(brokers)
	return nil
}

// SetBrokerAttributes replaces the labels of all nodes, for segments opened from now
// on and for [Frontend.DomainViolations].
func (f *Frontend) SetBrokerAttributes(labels map[cp.NodeID]Attributes) {
	f.meta.Lock()
	defer f.meta.Unlock()
	f.labels = maps.Clone(labels)
}

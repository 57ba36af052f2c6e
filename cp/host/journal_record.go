package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	pb "github.com/lni/dragonboat/v4/raftpb"
)

// replicaKey names one replica of one Raft group.
type replicaKey struct{ shard, replica uint64 }

func (k replicaKey) String() string { return fmt.Sprintf("vnode %d replica %d", k.shard, k.replica) }

type opKind byte

const (
	opBootstrap opKind = iota + 1
	opState
	opEntries  // replaces what the log holds from the first of them on
	opSnapshot // a snapshot was taken here; the log stays
	opInstall  // a snapshot came from a peer; it replaces the log
	opFirst    // in a checkpoint: the log begins at this index
	opRemove   // the replica is gone
)

// op is one record: one change of one replica's Raft state.
//
//	kind byte, shard and replica uvarint, body length uvarint, body
type op struct {
	kind opKind
	key  replicaKey

	boot    pb.Bootstrap
	state   pb.State
	entries []pb.Entry
	first   uint64
	snap    pb.Snapshot
	file    fileSum
}

// fileSum is what a snapshot file held when it was recorded, so that damage is
// found before dragonboat meets it and panics.
type fileSum struct {
	size uint64
	hash uint64
}

// append encodes o behind b.
func (o *op) append(b []byte) []byte {
	b = append(b, byte(o.kind))
	b = binary.AppendUvarint(b, o.key.shard)
	b = binary.AppendUvarint(b, o.key.replica)
	body := o.body()
	b = binary.AppendUvarint(b, uint64(len(body)))
	return append(b, body...)
}

func (o *op) body() (b []byte) {
	switch o.kind {
	case opBootstrap:
		return pb.MustMarshal(&o.boot)
	case opState:
		return pb.MustMarshal(&o.state)
	case opEntries:
		b = binary.AppendUvarint(b, uint64(len(o.entries)))
		for i := range o.entries {
			e := pb.MustMarshal(&o.entries[i])
			b = binary.AppendUvarint(b, uint64(len(e)))
			b = append(b, e...)
		}
	case opSnapshot, opInstall:
		b = binary.AppendUvarint(b, o.file.size)
		b = binary.LittleEndian.AppendUint64(b, o.file.hash)
		b = append(b, pb.MustMarshal(&o.snap)...)
	case opFirst:
		b = binary.AppendUvarint(b, o.first)
	}
	return b
}

var errRecord = errors.New("unreadable record")

// decodeOp reads one record from the front of b and returns what follows it.
func decodeOp(b []byte) (o op, rest []byte, err error) {
	if len(b) == 0 {
		return o, nil, errRecord
	}
	o.kind, b = opKind(b[0]), b[1:]
	var n uint64
	for _, v := range []*uint64{&o.key.shard, &o.key.replica, &n} {
		if *v, b, err = uvarint(b); err != nil {
			return o, nil, err
		}
	}
	if n > uint64(len(b)) {
		return o, nil, errRecord
	}
	body, rest := b[:n], b[n:]
	switch o.kind {
	case opBootstrap:
		err = o.boot.Unmarshal(body)
	case opState:
		err = o.state.Unmarshal(body)
	case opEntries:
		o.entries, err = decodeEntries(body)
	case opSnapshot, opInstall:
		if o.file.size, body, err = uvarint(body); err == nil && len(body) < 8 {
			err = errRecord
		}
		if err == nil {
			o.file.hash = binary.LittleEndian.Uint64(body)
			err = o.snap.Unmarshal(body[8:])
		}
	case opFirst:
		o.first, _, err = uvarint(body)
	case opRemove:
	default:
		err = errRecord
	}
	return o, rest, err
}

func decodeEntries(b []byte) (es []pb.Entry, err error) {
	n, b, err := uvarint(b)
	if err != nil || n > uint64(len(b)) {
		return nil, errRecord
	}
	for range n {
		var size uint64
		if size, b, err = uvarint(b); err != nil || size > uint64(len(b)) {
			return nil, errRecord
		}
		var e pb.Entry
		if err := e.Unmarshal(b[:size]); err != nil {
			return nil, err
		}
		es, b = append(es, e), b[size:]
	}
	return es, nil
}

func uvarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errRecord
	}
	return v, b[n:], nil
}

// image is the durable Raft state of every replica of this node.
type image map[replicaKey]*replicaLog

// replicaLog is one replica's part. Entries are kept in memory: snapshots keep
// their number small.
type replicaLog struct {
	boot    *pb.Bootstrap
	state   pb.State
	snap    pb.Snapshot
	file    fileSum
	first   uint64 // index of entries[0], or of the entry that comes next; 0 while nothing is known
	entries []pb.Entry
	bytes   int // of entries
}

const entryOverhead = 64 // what an entry costs beside its command

func (r *replicaLog) last() uint64 { return r.first + uint64(len(r.entries)) - 1 }

// apply changes the image by one record. An error means that the record cannot
// follow what is there: the journal is damaged, or the caller is.
func (m image) apply(o *op) error {
	if o.kind == opRemove {
		delete(m, o.key)
		return nil
	}
	r := m[o.key]
	if r == nil {
		r = &replicaLog{}
		m[o.key] = r
	}
	switch o.kind {
	case opBootstrap:
		r.boot = &o.boot
	case opState:
		r.state = o.state
	case opEntries:
		return r.append(o.key, o.entries)
	case opSnapshot:
		if o.snap.Index > r.snap.Index {
			r.snap, r.file = o.snap, o.file
		}
	case opInstall:
		r.snap, r.file = o.snap, o.file
		r.first, r.entries, r.bytes = o.snap.Index+1, nil, 0
	case opFirst:
		r.first, r.entries, r.bytes = o.first, nil, 0
	}
	return nil
}

// load applies the records of a frame.
func (m image) load(payload []byte) error {
	for len(payload) > 0 {
		o, rest, err := decodeOp(payload)
		if err != nil {
			return err
		}
		if err := m.apply(&o); err != nil {
			return err
		}
		payload = rest
	}
	return nil
}

func (r *replicaLog) append(key replicaKey, es []pb.Entry) error {
	if len(es) == 0 {
		return nil
	}
	if r.first == 0 {
		r.first = es[0].Index
	}
	at := es[0].Index
	if at < r.first || at > r.first+uint64(len(r.entries)) {
		return fmt.Errorf("%s: entry %d does not follow a log of [%d, %d]", key, at, r.first, r.last())
	}
	for i := range es {
		if es[i].Index != at+uint64(i) {
			return fmt.Errorf("%s: entry %d where %d belongs", key, es[i].Index, at+uint64(i))
		}
	}
	keep := at - r.first
	for _, e := range r.entries[keep:] {
		r.bytes -= len(e.Cmd) + entryOverhead
	}
	r.entries = append(r.entries[:keep], es...) // readers copied what they took
	for i := range es {
		r.bytes += len(es[i].Cmd) + entryOverhead
	}
	return nil
}

// compact forgets entries up to index.
func (r *replicaLog) compact(index uint64) {
	if index < r.first {
		return
	}
	n := min(index-r.first+1, uint64(len(r.entries)))
	for _, e := range r.entries[:n] {
		r.bytes -= len(e.Cmd) + entryOverhead
	}
	r.entries = slices.Clone(r.entries[n:])
	r.first += n
}

// check says whether the replica's parts fit each other, as they do unless a
// file was damaged or put back from another time.
func (m image) check() error {
	for _, key := range m.keys() {
		r := m[key]
		last := r.snap.Index
		if r.first > 0 {
			last = max(last, r.last())
		}
		switch {
		case r.boot == nil:
			return fmt.Errorf("%s: log without a bootstrap record", key)
		case len(r.entries) > 0 && r.first > r.snap.Index+1:
			return fmt.Errorf("%s: entries up to %d are missing before the log's first, %d", key, r.snap.Index+1, r.first)
		case r.state.Commit > last:
			return fmt.Errorf("%s: committed up to %d, but the log ends at %d", key, r.state.Commit, last)
		}
	}
	return nil
}

func (m image) keys() []replicaKey {
	return slices.SortedFunc(maps.Keys(m), func(a, b replicaKey) int {
		if a.shard != b.shard {
			return int(int64(a.shard - b.shard))
		}
		return int(int64(a.replica - b.replica))
	})
}

// bytes is what the entries of all replicas hold.
func (m image) bytes() (n int) {
	for _, r := range m {
		n += r.bytes
	}
	return n
}

// checkpointOps returns records that make an empty image equal to m.
func (m image) checkpointOps() (ops []op) {
	const chunk = 1024
	for _, key := range m.keys() {
		r := m[key]
		if r.boot != nil {
			ops = append(ops, op{kind: opBootstrap, key: key, boot: *r.boot})
		}
		if !pb.IsEmptyState(r.state) {
			ops = append(ops, op{kind: opState, key: key, state: r.state})
		}
		if r.snap.Index > 0 {
			ops = append(ops, op{kind: opSnapshot, key: key, snap: r.snap, file: r.file})
		}
		if r.first > 0 {
			ops = append(ops, op{kind: opFirst, key: key, first: r.first})
		}
		for es := range slices.Chunk(r.entries, chunk) {
			ops = append(ops, op{kind: opEntries, key: key, entries: es})
		}
	}
	return ops
}

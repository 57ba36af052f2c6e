package host

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/lni/dragonboat/v4/config"
	"github.com/lni/dragonboat/v4/raftio"
	pb "github.com/lni/dragonboat/v4/raftpb"
	"github.com/zeebo/xxh3"
)

// logDB gives dragonboat the journal in the shape it asks for.
type logDB struct {
	*journal
	host *Host
	dir  string // that snapshot paths are recorded relative to, so that it may move
	fs   *raftFS
}

var _ raftio.ILogDB = (*logDB)(nil)

const logDBName = "ringfence-journal"

func (l *logDB) Create(config.NodeHostConfig, config.LogDBCallback, []string, []string) (raftio.ILogDB, error) {
	return l, nil
}

func (l *logDB) Name() string         { return logDBName }
func (l *logDB) BinaryFormat() uint32 { return raftio.PlainLogDBBinVersion }

// Close leaves the journal open: the host opened it and closes it.
func (l *logDB) Close() error { return nil }

func (l *logDB) ListNodeInfo() (infos []raftio.NodeInfo, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.image.keys() {
		if l.image[key].boot != nil {
			infos = append(infos, raftio.GetNodeInfo(key.shard, key.replica))
		}
	}
	return infos, nil
}

func (l *logDB) SaveBootstrapInfo(shard, replica uint64, b pb.Bootstrap) error {
	return l.commit(op{kind: opBootstrap, key: replicaKey{shard, replica}, boot: b})
}

func (l *logDB) GetBootstrapInfo(shard, replica uint64) (pb.Bootstrap, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.image[replicaKey{shard, replica}]
	if r == nil || r.boot == nil {
		return pb.Bootstrap{}, raftio.ErrNoBootstrapInfo
	}
	return *r.boot, nil
}

// SaveRaftState makes what a step worker gathered durable in one write, shared
// with the other workers'.
func (l *logDB) SaveRaftState(updates []pb.Update, _ uint64) error {
	var ops []op
	for i := range updates {
		u := &updates[i]
		key := replicaKey{u.ShardID, u.ReplicaID}
		if !pb.IsEmptySnapshot(u.Snapshot) {
			o, err := l.snapshotOp(opInstall, key, u.Snapshot)
			if err != nil {
				return err
			}
			ops = append(ops, o)
		}
		if len(u.EntriesToSave) > 0 {
			ops = append(ops, op{kind: opEntries, key: key, entries: u.EntriesToSave})
		}
		if !pb.IsEmptyState(u.State) && l.stateMatters(key, u) {
			ops = append(ops, op{kind: opState, key: key, state: u.State})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	return l.commit(ops...)
}

// commit saves and puts the host's name on an error.
func (l *logDB) commit(ops ...op) error {
	if err := l.journal.commit(ops...); err != nil {
		return &hostError{l.host, err}
	}
	return nil
}

// stateMatters says whether a state must be written. Raft asks only that term and
// vote are durable; a commit index may be lost, because a leader finds it again.
// So it travels with the next entries and never costs a write of its own.
func (l *logDB) stateMatters(key replicaKey, u *pb.Update) bool {
	if len(u.EntriesToSave) > 0 || !pb.IsEmptySnapshot(u.Snapshot) {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.image[key]
	return r == nil || r.state.Term != u.State.Term || r.state.Vote != u.State.Vote
}

func (l *logDB) IterateEntries(ents []pb.Entry, size uint64, shard, replica, low, high, maxSize uint64) ([]pb.Entry, uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.image[replicaKey{shard, replica}]
	if r == nil || low < r.first {
		return ents, size, nil
	}
	for i := low; i < min(high, r.first+uint64(len(r.entries))); i++ {
		e := r.entries[i-r.first]
		size += uint64(e.SizeUpperLimit())
		ents = append(ents, e)
		if size > maxSize {
			break
		}
	}
	return ents, size, nil
}

func (l *logDB) ReadRaftState(shard, replica, snapshot uint64) (raftio.RaftState, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.image[replicaKey{shard, replica}]
	if r == nil || pb.IsEmptyState(r.state) {
		return raftio.RaftState{}, raftio.ErrNoSavedLog
	}
	s := raftio.RaftState{State: r.state, FirstIndex: max(snapshot+1, r.first)}
	if last := r.first + uint64(len(r.entries)); last > s.FirstIndex { // exclusive
		s.EntryCount = last - s.FirstIndex
	} else {
		s.FirstIndex = snapshot
	}
	return s, nil
}

// RemoveEntriesTo forgets what a snapshot replaces. The next checkpoint leaves it
// out; until then a restart finds more than it needs, which does no harm.
func (l *logDB) RemoveEntriesTo(shard, replica, index uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.image[replicaKey{shard, replica}]; r != nil {
		r.compact(index)
	}
	return nil
}

func (l *logDB) CompactEntriesTo(_, _, _ uint64) (<-chan struct{}, error) {
	done := make(chan struct{})
	close(done)
	return done, nil
}

func (l *logDB) SaveSnapshots(updates []pb.Update) error {
	var ops []op
	for i := range updates {
		u := &updates[i]
		if pb.IsEmptySnapshot(u.Snapshot) {
			continue
		}
		o, err := l.snapshotOp(opSnapshot, replicaKey{u.ShardID, u.ReplicaID}, u.Snapshot)
		if err != nil {
			return err
		}
		ops = append(ops, o)
	}
	if len(ops) == 0 {
		return nil
	}
	return l.commit(ops...)
}

func (l *logDB) GetSnapshot(shard, replica uint64) (pb.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.image[replicaKey{shard, replica}]
	if r == nil || r.snap.Index == 0 {
		return pb.Snapshot{}, nil
	}
	ss := r.snap
	ss.Filepath = filepath.Join(l.dir, ss.Filepath)
	return ss, nil
}

func (l *logDB) RemoveNodeData(shard, replica uint64) error {
	return l.commit(op{kind: opRemove, key: replicaKey{shard, replica}})
}

// ImportSnapshot makes a replica start from a snapshot that was exported elsewhere.
func (l *logDB) ImportSnapshot(ss pb.Snapshot, replica uint64) error {
	key := replicaKey{ss.ShardID, replica}
	install, err := l.snapshotOp(opInstall, key, ss)
	if err != nil {
		return err
	}
	return l.commit(
		op{kind: opRemove, key: key},
		op{kind: opBootstrap, key: key, boot: pb.Bootstrap{Join: true, Type: ss.Type}},
		install,
		op{kind: opState, key: key, state: pb.State{Term: ss.Term, Commit: ss.Index}},
	)
}

// snapshotOp records a snapshot with what its file holds.
func (l *logDB) snapshotOp(kind opKind, key replicaKey, ss pb.Snapshot) (op, error) {
	o := op{kind: kind, key: key}
	// Through its encoding: the copy must not share dragonboat's reference counts.
	if err := o.snap.Unmarshal(pb.MustMarshal(&ss)); err != nil {
		return o, fmt.Errorf("snapshot record: %w", err)
	}
	file := l.fs.path(ss.Filepath)
	if rel, err := filepath.Rel(l.dir, file); err == nil && !strings.HasPrefix(rel, "..") {
		o.snap.Filepath = rel
	}
	if ss.Witness || ss.Dummy {
		return o, nil
	}
	sum, err := sumFile(file)
	if err != nil {
		return o, &hostError{l.host, fmt.Errorf("snapshot: %w", err)}
	}
	o.file = sum
	return o, nil
}

func sumFile(name string) (fileSum, error) {
	f, err := os.Open(name)
	if err != nil {
		return fileSum{}, err
	}
	defer f.Close()
	h := xxh3.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return fileSum{}, err
	}
	return fileSum{uint64(n), h.Sum64()}, nil
}

// checkSnapshots refuses snapshot files that are not what was recorded:
// dragonboat would panic on one of its own goroutines.
func (l *logDB) checkSnapshots() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range l.image.keys() {
		r := l.image[key]
		if r.snap.Index == 0 || r.file == (fileSum{}) {
			continue
		}
		name := filepath.Join(l.dir, r.snap.Filepath)
		got, err := sumFile(name)
		switch {
		case err != nil:
			return &DamageError{File: name, Byte: -1, Reason: "snapshot of " + key.String() + ": " + err.Error()}
		case got.size != r.file.size:
			return &DamageError{File: name, Byte: int64(min(got.size, r.file.size, math.MaxInt64)),
				Reason: fmt.Sprintf("snapshot of %s has %d bytes instead of %d", key, got.size, r.file.size)}
		case got.hash != r.file.hash:
			return &DamageError{File: name, Byte: -1, Reason: "snapshot of " + key.String() + ": checksum does not match"}
		}
	}
	return nil
}

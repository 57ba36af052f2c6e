package host

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	sm "github.com/lni/dragonboat/v4/statemachine"
	"github.com/lni/vfs"
)

// raftFS is the file system that dragonboat keeps its snapshots in. It differs
// from the real one in three ways:
//
//   - dragonboat puts everything under a folder named after the machine, and would
//     not find it again after the machine was renamed, as containers are at every
//     start. Here that folder has a fixed name.
//   - A full disk while a snapshot is written aborts that snapshot, which dragonboat
//     takes as harmless, instead of an error, which it dies of. The log keeps what
//     the snapshot would have replaced, and the next attempt comes soon.
//   - A folder of an unfinished snapshot that cannot be removed is left for the next
//     start to remove.
type raftFS struct {
	vfs.FS
	from, to string // folder of this machine's name, folder of the fixed name
	log      *slog.Logger
}

func newRaftFS(dir string, log *slog.Logger) (*raftFS, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return &raftFS{
		FS:   vfs.Default,
		from: filepath.Join(dir, name),
		to:   filepath.Join(dir, "snapshots"),
		log:  log,
	}, nil
}

func (m *raftFS) path(name string) string {
	rest, ok := strings.CutPrefix(name, m.from)
	if ok && (rest == "" || rest[0] == filepath.Separator) {
		return m.to + rest
	}
	return name
}

// softError is a full disk in the shape of an aborted snapshot.
type softError struct{ err error }

func (e softError) Error() string { return e.err.Error() }
func (e softError) Unwrap() error { return sm.ErrSnapshotAborted }

func soften(err error) error {
	if err != nil && outOfSpace(err) {
		return softError{err}
	}
	return err
}

func (m *raftFS) file(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, soften(err)
	}
	return softFile{f}, nil
}

func (m *raftFS) Create(name string) (vfs.File, error) {
	return m.file(m.FS.Create(m.path(name)))
}

func (m *raftFS) Link(from, to string) error {
	return soften(m.FS.Link(m.path(from), m.path(to)))
}

func (m *raftFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return m.FS.Open(m.path(name), opts...)
}

func (m *raftFS) OpenDir(name string) (vfs.File, error) {
	return m.file(m.FS.OpenDir(m.path(name)))
}

func (m *raftFS) OpenForAppend(name string) (vfs.File, error) {
	return m.file(m.FS.OpenForAppend(m.path(name)))
}

func (m *raftFS) Remove(name string) error { return m.FS.Remove(m.path(name)) }

func (m *raftFS) RemoveAll(name string) error {
	err := m.FS.RemoveAll(m.path(name))
	if err != nil && strings.HasSuffix(name, ".generating") {
		m.log.Warn("unfinished metadata snapshot stays until the next start", "dir", m.path(name), "err", err)
		return nil
	}
	return err
}

func (m *raftFS) Rename(from, to string) error {
	return soften(m.FS.Rename(m.path(from), m.path(to)))
}

func (m *raftFS) ReuseForWrite(from, to string) (vfs.File, error) {
	return m.file(m.FS.ReuseForWrite(m.path(from), m.path(to)))
}

func (m *raftFS) MkdirAll(dir string, perm os.FileMode) error {
	return soften(m.FS.MkdirAll(m.path(dir), perm))
}

func (m *raftFS) Lock(name string) (io.Closer, error)          { return m.FS.Lock(m.path(name)) }
func (m *raftFS) List(dir string) ([]string, error)            { return m.FS.List(m.path(dir)) }
func (m *raftFS) Stat(name string) (os.FileInfo, error)        { return m.FS.Stat(m.path(name)) }
func (m *raftFS) GetDiskUsage(n string) (vfs.DiskUsage, error) { return m.FS.GetDiskUsage(m.path(n)) }

// softFile is a file whose writes meet a full disk softly.
type softFile struct{ vfs.File }

func (f softFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	return n, soften(err)
}

func (f softFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(p, off)
	return n, soften(err)
}

func (f softFile) Sync() error  { return soften(f.File.Sync()) }
func (f softFile) Close() error { return soften(f.File.Close()) }

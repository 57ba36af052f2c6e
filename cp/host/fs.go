package host

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	sm "github.com/lni/dragonboat/v4/statemachine"
	"github.com/lni/vfs"
)

// raftFS is the file system that dragonboat keeps its snapshots in. It differs
// from the real one:
//
//   - dragonboat's own two files of identity, which tie the directory to a machine's
//     name and may be torn by a crash, are kept in memory: identity.json and the
//     journal do that work.
//   - dragonboat puts everything under a folder named after the machine, and would
//     not find it again after the machine was renamed, as containers are at every
//     start. Here that folder has a fixed name.
//   - A full disk while a snapshot is written aborts that snapshot, which dragonboat
//     takes as harmless, instead of an error, which it dies of. The log keeps what
//     the snapshot would have replaced, and the next attempt comes soon.
//   - A folder of an unfinished snapshot that cannot be removed is left for the next
//     start to remove.
//
// After the host was closed it changes nothing, whoever of dragonboat's goroutines
// is left.
type raftFS struct {
	vfs.FS
	dir      string
	from, to string // folder of this machine's name, folder of the fixed name
	memory   vfs.FS
	log      *slog.Logger

	shut atomic.Bool // set when the host is closed: nothing is changed any more
}

func newRaftFS(dir string, log *slog.Logger) (*raftFS, error) {
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	mem := vfs.NewMem()
	if err := mem.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &raftFS{
		FS:     vfs.Default,
		dir:    dir,
		from:   filepath.Join(dir, name),
		to:     filepath.Join(dir, "snapshots"),
		memory: mem,
		log:    log,
	}, nil
}

// at is the file system that a name is on.
func (m *raftFS) at(name string) vfs.FS {
	dir, file := filepath.Split(name)
	if filepath.Clean(dir) == m.dir && (file == "dragonboat.ds" || file == "NODEHOST.ID") {
		return m.memory
	}
	return m.FS
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

// open says whether files may still be changed.
func (m *raftFS) open() error {
	if m.shut.Load() {
		return softError{ErrClosed}
	}
	return nil
}

func (m *raftFS) Create(name string) (vfs.File, error) {
	if err := m.open(); err != nil {
		return nil, err
	}
	return m.file(m.at(name).Create(m.path(name)))
}

func (m *raftFS) Link(from, to string) error {
	if err := m.open(); err != nil {
		return err
	}
	return soften(m.FS.Link(m.path(from), m.path(to)))
}

func (m *raftFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return m.at(name).Open(m.path(name), opts...)
}

func (m *raftFS) OpenDir(name string) (vfs.File, error) {
	return m.file(m.FS.OpenDir(m.path(name)))
}

func (m *raftFS) OpenForAppend(name string) (vfs.File, error) {
	return m.file(m.FS.OpenForAppend(m.path(name)))
}

func (m *raftFS) Remove(name string) error {
	if err := m.open(); err != nil {
		return err
	}
	return m.FS.Remove(m.path(name))
}

func (m *raftFS) RemoveAll(name string) error {
	if err := m.open(); err != nil {
		return err
	}
	err := m.FS.RemoveAll(m.path(name))
	if err != nil && strings.HasSuffix(name, ".generating") {
		m.log.Warn("unfinished metadata snapshot stays until the next start", "dir", m.path(name), "err", err)
		return nil
	}
	return err
}

func (m *raftFS) Rename(from, to string) error {
	if err := m.open(); err != nil {
		return err
	}
	return soften(m.FS.Rename(m.path(from), m.path(to)))
}

func (m *raftFS) ReuseForWrite(from, to string) (vfs.File, error) {
	return m.file(m.FS.ReuseForWrite(m.path(from), m.path(to)))
}

func (m *raftFS) MkdirAll(dir string, perm os.FileMode) error {
	if err := m.open(); err != nil {
		return err
	}
	return soften(m.FS.MkdirAll(m.path(dir), perm))
}

func (m *raftFS) Lock(name string) (io.Closer, error)          { return m.FS.Lock(m.path(name)) }
func (m *raftFS) List(dir string) ([]string, error)            { return m.FS.List(m.path(dir)) }
func (m *raftFS) Stat(name string) (os.FileInfo, error)        { return m.at(name).Stat(m.path(name)) }
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

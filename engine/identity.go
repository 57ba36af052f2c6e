package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// identity is the file in the log directory that says which metadata it belongs to.
// Log and metadata are worth nothing without each other: metadata without its log
// promises records that are not there, and a log without its metadata would be set
// aside as nobody's. So neither is ever taken for empty when the other is not.
//
// It also is the marker of a clean stop.
type identity struct {
	Format   int    `json:"format"`
	Metadata string `json:"metadata"` // the identity of the metadata directory
	Opened   uint64 `json:"opened"`   // by which incarnation of the metadata, last
	State    string `json:"state"`
	CRC      uint32 `json:"crc"` // CRC-32C of this object with crc 0
}

const (
	identityName   = "identity.json"
	identityFormat = 1

	stateOpen   = "open"   // a process has the log, or died with it
	stateClosed = "closed" // every segment is fenced and on record
)

// Stop says how the process before ended.
type Stop string

const (
	StopNew     Stop = "new"     // there was none
	StopClean   Stop = "clean"   // it closed the engine
	StopUnclean Stop = "unclean" // it was killed, or the machine went down, or it could not close a segment
	StopUnknown Stop = "unknown" // the log was put back from a copy, or an Open before failed half-way
)

// readIdentity returns nil if there is none.
func readIdentity(d disk.Disk, dir string) (*identity, error) {
	f, err := d.Open(identityName, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, disk.Block)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	id := new(identity)
	if err := json.Unmarshal(b[:n], id); err != nil {
		why := err.Error()
		if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
			why = fmt.Sprintf("at byte %d: %s", s.Offset-1, why)
		}
		return nil, badIdentity(dir, why)
	}
	switch {
	case id.Format > identityFormat:
		return nil, fmt.Errorf("%s/%s has format %d, this program knows %d: use a newer version of it", dir, identityName, id.Format, identityFormat)
	case id.CRC != id.checksum():
		return nil, badIdentity(dir, fmt.Sprintf("the checksum of its %d bytes does not match", n))
	case id.State != stateOpen && id.State != stateClosed:
		return nil, badIdentity(dir, fmt.Sprintf("it is in no state %q", id.State))
	}
	return id, nil
}

func badIdentity(dir, why string) error {
	return &metaDamage{fmt.Errorf("%s/%s is damaged: %s; where log and metadata are known to be of one time, remove it and it is written anew", dir, identityName, why)}
}

func (id identity) checksum() uint32 {
	id.CRC = 0
	b, err := json.Marshal(id)
	if err != nil {
		panic(err) // strings and numbers
	}
	return crc32.Checksum(b, castagnoli)
}

// save replaces the file so that a crash leaves the old one or the new one.
func (id identity) save(d disk.Disk) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("save the identity of the log: %w", err)
		}
	}()
	id.CRC = id.checksum()
	b, err := json.Marshal(id)
	if err != nil {
		return err
	}
	block := make([]byte, disk.Block)
	for i := copy(block, b); i < len(block); i++ {
		block[i] = ' '
	}
	block[len(block)-1] = '\n'
	const next = identityName + ".tmp"
	if err := d.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.Create(next)
	if err != nil {
		return err
	}
	err = f.WriteAt(block, 0)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := d.Rename(next, identityName); err != nil {
		return err
	}
	return d.SyncDir("")
}

// mayForm says whether metadata may be made anew beside a log.
func mayForm(d disk.Disk, id *identity, dir string) error {
	segments, err := holdsSegments(d)
	if err != nil {
		return err
	}
	if id == nil && !segments {
		return nil
	}
	return fmt.Errorf("%w: %s/log holds a log, and there is no metadata in %s/meta: put meta back from a copy of the same time, or move log away to begin anew without its records",
		ErrMismatch, dir, dir)
}

// holdsSegments says whether there is any file where segments lie.
func holdsSegments(d disk.Disk) (bool, error) {
	topics, err := d.List(segfile.TopicsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for _, t := range topics {
		if !t.Dir {
			return true, nil
		}
		files, err := d.List(segfile.TopicsDir + "/" + t.Name)
		if err != nil || len(files) > 0 {
			return true, err
		}
	}
	return false, nil
}

// belongs refuses a log that is not the one of the metadata, and says how the
// process before ended.
func (e *Engine) belongs(d disk.Disk, id *identity) (Stop, error) {
	h := e.host
	switch {
	case id == nil && !h.Formed():
		return StopUnknown, e.anyFile(d)
	case id == nil:
		return StopNew, nil
	case id.Metadata != h.Disk():
		return "", fmt.Errorf("%w: the log in %s/log belongs to metadata %s, and %s/meta holds %s: put both back from one copy",
			ErrMismatch, e.dir, id.Metadata, e.dir, h.Disk())
	case id.State == stateOpen:
		return StopUnclean, nil
	case id.Opened+1 != h.Incarnation():
		return StopUnknown, nil
	}
	return StopClean, nil
}

// anyFile refuses a log without an identity if the metadata lists segments and not
// one of them is there: it was removed, or is not mounted.
func (e *Engine) anyFile(d disk.Disk) error {
	listed, found := 0, false
	topics, err := e.topics()
	if err != nil {
		return err
	}
	for _, t := range topics {
		segments, err := e.segmentsOf(t.Name)
		if err != nil {
			return err
		}
		for _, s := range segments {
			if found {
				return nil
			}
			listed++
			f, err := d.Open(segfile.Name(s.ID), true)
			switch {
			case err == nil:
				found = true
				f.Close()
			case errors.Is(err, fs.ErrPermission):
				found = true
			case !errors.Is(err, fs.ErrNotExist):
				return err
			}
		}
	}
	if listed == 0 || found {
		return nil
	}
	return fmt.Errorf("%w: the metadata in %s/meta lists %d segments, and none of their files is in %s/log: put log back, or mount it; to begin anew without its records move %s away",
		ErrMismatch, e.dir, listed, e.dir, e.dir)
}

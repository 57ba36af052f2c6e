package host

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ringfence/ringfence/cp"
)

const identityFormat = 1

// identity is who the replicas in a directory are. It lies beside the Raft log, in
// a file of its own: a node whose log was removed or put back from a copy must
// never come back as the replica it was, because Raft relies on what a replica
// once promised.
type identity struct {
	Format int       `json:"format"`
	Node   cp.NodeID `json:"node"`
	Disk   string    `json:"disk"` // random, 128 bits: this directory and no copy made before it
	Vnodes int       `json:"vnodes"`
	Starts uint64    `json:"starts"` // how often it was opened; the journal counts too
	Formed bool      `json:"formed"` // the replicas exist; false only until the first start is complete
	CRC    uint32    `json:"crc"`    // CRC-32C of this object with crc 0
}

const identityFile = "identity.json"

func newIdentity(node cp.NodeID, vnodes int) *identity {
	var b [16]byte
	rand.Read(b[:])
	return &identity{Format: identityFormat, Node: node, Disk: hex.EncodeToString(b[:]), Vnodes: vnodes}
}

// readIdentity returns nil if there is none.
func readIdentity(dir string) (*identity, error) {
	name := filepath.Join(dir, identityFile)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cp/host: %w", err)
	}
	id := new(identity)
	if err := json.Unmarshal(b, id); err != nil {
		at := int64(-1)
		if s := (*json.SyntaxError)(nil); errors.As(err, &s) {
			at = s.Offset - 1
		}
		return nil, &DamageError{File: name, Byte: at, Reason: err.Error()}
	}
	if id.Format > identityFormat {
		return nil, fmt.Errorf("%w: %s has format %d, this program knows %d", ErrNewer, name, id.Format, identityFormat)
	}
	if id.CRC != id.checksum() {
		return nil, &DamageError{File: name, Byte: -1, Reason: fmt.Sprintf("the checksum of its %d bytes does not match", len(b))}
	}
	return id, nil
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
func (id *identity) save(dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cp/host: saving identity: %w", err)
		}
	}()
	id.CRC = id.checksum()
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	name := filepath.Join(dir, identityFile)
	f, err := os.OpenFile(name+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(name+".tmp", name); err != nil {
		return err
	}
	return syncDir(dir)
}

func (id *identity) disk() (disk [16]byte, err error) {
	b, err := hex.DecodeString(id.Disk)
	if err != nil || len(b) != len(disk) {
		return disk, fmt.Errorf("cp/host: %s: disk %q is not 32 hexadecimal digits", identityFile, id.Disk)
	}
	return [16]byte(b), nil
}

// next judges a journal by who it says it is and how often it was opened, and
// returns the number of this start. The journal records a start before the
// identity does, so it may be ahead: after a crash, or while the disk was full. An
// identity of an earlier time says nothing that is not true any more; a journal of
// an earlier time has forgotten what this replica promised.
func (id *identity) next(dir string, last slotHeader) (uint64, error) {
	disk, err := id.disk()
	switch {
	case err != nil:
		return 0, err
	case !id.Formed:
		return 1, nil
	case last.disk != disk:
		return 0, fmt.Errorf("%w: %s belongs to disk %s, the Raft log beside it to disk %x; put both back from one copy",
			ErrMismatch, filepath.Join(dir, identityFile), id.Disk, last.disk)
	case last.start < id.Starts:
		return 0, fmt.Errorf("%w: the Raft log in %s was opened %d times, %s says %d: the log is older; "+
			"put both back from one copy, or replace this node", ErrRolledBack, dir, last.start, identityFile, id.Starts)
	}
	return last.start + 1, nil
}

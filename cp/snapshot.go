package cp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A snapshot of a vnode:
//
//	magic     8  "RFCPSNAP"
//	version   4  1, or 2 where there are users
//	policies     count u32, then by name: name, policy
//	users        in version 2: count u32, not 0, then by name, each: length u32 of
//	             what follows, fields as in codec_user.go
//	topics       by name, each: length u32 of what follows, migrating u8,
//	             fields as in an exported topic
//	end       4  0, where a topic's length would be
//	topics    8  how many
//	crc       4  CRC-32C of everything before it
//
// It has no indexes and no order of arrival in it: equal states have equal bytes. A state
// without users is one that software reads which knows none.
const (
	snapshotMagic   = "RFCPSNAP"
	snapshotPlain   = 1
	snapshotVersion = 2
	maxTopicBlock   = 1 << 30
	maxUserBlock    = 1 << 20
)

const _ = uint(maxUserBlock - 4096 - MaxHash - MaxGrants*(6+MaxName) - MaxTokens*(tokenLen+MaxName)) // it fits

// Snapshot writes the whole state. It holds one topic's bytes in memory at a
// time.
func (s *State) Snapshot(w io.Writer) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 64<<10)
	e := encoder{b: []byte(snapshotMagic)}
	if s.access.Len() == 0 {
		e.u32(snapshotPlain)
	} else {
		e.u32(snapshotVersion)
	}
	e.u32(uint32(len(s.policies)))
	for name, p := range s.Policies() {
		e.string(name)
		e.policy(p)
	}
	if s.access.Len() > 0 {
		e.u32(uint32(s.access.Len()))
	}
	if _, err := out.Write(e.b); err != nil {
		return fmt.Errorf("cp: write snapshot: %w", err)
	}
	for u := range s.access.Users() {
		e.b = append(e.b[:0], 0, 0, 0, 0)
		e.user(u)
		binary.LittleEndian.PutUint32(e.b, uint32(len(e.b)-4))
		if _, err := out.Write(e.b); err != nil {
			return fmt.Errorf("cp: write snapshot: %w", err)
		}
	}
	for _, t := range s.sorted() {
		e.b = append(e.b[:0], 0, 0, 0, 0)
		e.bool(t.migrating)
		e.topic(t)
		if len(e.b) > maxTopicBlock {
			return fmt.Errorf("cp: write snapshot: topic %q takes %d bytes, more than the format holds", t.rec.Name, len(e.b))
		}
		binary.LittleEndian.PutUint32(e.b, uint32(len(e.b)-4))
		if _, err := out.Write(e.b); err != nil {
			return fmt.Errorf("cp: write snapshot: %w", err)
		}
	}
	e.b = e.b[:0]
	e.u32(0)
	e.u64(uint64(s.topics.len))
	_, _ = out.Write(e.b) // Flush answers for it
	if err := out.Flush(); err != nil {
		return fmt.Errorf("cp: write snapshot: %w", err)
	}
	e.b = e.b[:0]
	e.u32(sum.Sum32())
	if _, err := w.Write(e.b); err != nil {
		return fmt.Errorf("cp: write snapshot: %w", err)
	}
	return nil
}

// Restore replaces the state by a snapshot. On any error the state stays as it
// was: [ErrNewerSnapshot], [ErrSnapshot], or what reading failed with. It
// believes no length before the bytes are there, and accepts only a state that
// its commands could have made.
func (s *State) Restore(r io.Reader) error {
	in := snapshotReader{r: bufio.NewReaderSize(r, 64<<10), nodeID: map[string]NodeID{}}
	fresh := NewState()
	if err := in.state(fresh); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: it ends early", ErrSnapshot)
		}
		return err
	}
	s.own.Store(fresh.own.Load())
	s.topics, s.ids, s.policies, s.access = fresh.topics, fresh.ids, fresh.policies, fresh.access
	return nil
}

// snapshotReader reads pieces of a snapshot and sums them up.
type snapshotReader struct {
	r      *bufio.Reader
	sum    uint32
	buf    []byte
	nodeID map[string]NodeID
}

// next reads n bytes, in steps, so that a wrong length costs no more memory
// than there are bytes.
func (in *snapshotReader) next(n int) ([]byte, error) {
	in.buf = in.buf[:0]
	for n > 0 {
		step := min(n, 1<<20)
		at := len(in.buf)
		in.buf = append(in.buf, make([]byte, step)...)
		if _, err := io.ReadFull(in.r, in.buf[at:]); err != nil {
			return nil, err
		}
		n -= step
	}
	in.sum = crc32.Update(in.sum, castagnoli, in.buf)
	return in.buf, nil
}

func (in *snapshotReader) u32() (uint32, error) {
	b, err := in.next(4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (in *snapshotReader) state(s *State) error {
	magic, err := in.next(len(snapshotMagic))
	if err != nil {
		return err
	}
	if string(magic) != snapshotMagic {
		return fmt.Errorf("%w: it starts with %q", ErrSnapshot, magic)
	}
	version, err := in.u32()
	switch {
	case err != nil:
		return err
	case version > snapshotVersion:
		return fmt.Errorf("%w: version %d, this software knows %d", ErrNewerSnapshot, version, snapshotVersion)
	case version < snapshotPlain:
		return fmt.Errorf("%w: version %d", ErrSnapshot, version)
	}
	if err := in.policies(s); err != nil {
		return err
	}
	if version > snapshotPlain {
		if err := in.users(s); err != nil {
			return err
		}
	}
	if err := in.topics(s); err != nil {
		return err
	}
	want := in.sum
	if sum, err := in.u32(); err != nil {
		return err
	} else if sum != want {
		return fmt.Errorf("%w: checksum %08x, its bytes have %08x", ErrSnapshot, sum, want)
	}
	if _, err := in.r.ReadByte(); err == nil {
		return fmt.Errorf("%w: bytes behind its end", ErrSnapshot)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (in *snapshotReader) policies(s *State) error {
	n, err := in.u32()
	if err != nil {
		return err
	}
	if n > MaxPolicies {
		return fmt.Errorf("%w: %d policies", ErrSnapshot, n)
	}
	last := ""
	for range n {
		name, err := in.string()
		if err != nil {
			return err
		}
		p, err := in.policy()
		if err != nil {
			return err
		}
		if name <= last || len(name) > MaxName || p.check(true) != nil {
			return fmt.Errorf("%w: policy %q", ErrSnapshot, name)
		}
		if s.policies == nil {
			s.policies = map[string]Policy{}
		}
		s.policies[name], last = p, name
	}
	return nil
}

func (in *snapshotReader) string() (string, error) {
	n, err := in.u32()
	if err != nil {
		return "", err
	}
	if n > MaxName {
		return "", fmt.Errorf("%w: a name of %d bytes", ErrSnapshot, n)
	}
	b, err := in.next(int(n))
	return string(b), err
}

// policy reads the fields before the attribute, then the attribute.
func (in *snapshotReader) policy() (p Policy, err error) {
	b, err := in.next(4*9 + 1)
	if err != nil {
		return p, err
	}
	d := decoder{b: b}
	p = Policy{MaxAge: d.bound(), MaxBytes: d.bound(), SegmentMaxAge: d.bound(), SegmentMaxBytes: d.bound()}
	p.SpreadBy.Setting = Setting(d.u8())
	p.SpreadBy.Attribute, err = in.string()
	return p, err
}

func (in *snapshotReader) users(s *State) error {
	n, err := in.u32()
	if err != nil {
		return err
	}
	if n == 0 || n > MaxUsers {
		return fmt.Errorf("%w: %d users", ErrSnapshot, n)
	}
	last := ""
	for range n {
		size, err := in.u32()
		if err != nil {
			return err
		}
		if size > maxUserBlock {
			return fmt.Errorf("%w: a user of %d bytes", ErrSnapshot, size)
		}
		b, err := in.next(int(size))
		if err != nil {
			return err
		}
		d := decoder{b: b}
		u := d.user()
		if !d.done() || u.Name <= last {
			return fmt.Errorf("%w: the user after %q", ErrSnapshot, last)
		}
		if err := u.check(); err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		for i := range u.Tokens {
			if other, _ := s.access.Token(u.Tokens[i].ID); other != nil {
				return fmt.Errorf("%w: users %q and %q have one token", ErrSnapshot, other.Name, u.Name)
			}
		}
		s.putUser(u)
		last = u.Name
	}
	return nil
}

func (in *snapshotReader) topics(s *State) error {
	last := ""
	for {
		n, err := in.u32()
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if n > maxTopicBlock {
			return fmt.Errorf("%w: a topic of %d bytes", ErrSnapshot, n)
		}
		b, err := in.next(int(n))
		if err != nil {
			return err
		}
		d := decoder{b: b, nodeID: in.nodeID}
		migrating := d.bool()
		t := d.topic()
		t.migrating = migrating
		if !d.done() {
			return fmt.Errorf("%w: the topic after %q", ErrSnapshot, last)
		}
		if err := t.check(); err != nil {
			return fmt.Errorf("%w: %w", ErrSnapshot, err)
		}
		if t.rec.Name <= last || s.topicByID(t.rec.ID) != nil {
			return fmt.Errorf("%w: topic %q is out of order or there twice", ErrSnapshot, t.rec.Name)
		}
		last = t.rec.Name
		t.adopt(s.own.Load())
		s.put(t)
	}
	b, err := in.next(8)
	if err != nil {
		return err
	}
	if n := binary.LittleEndian.Uint64(b); n != uint64(s.topics.len) {
		return fmt.Errorf("%w: %d topics where it says %d", ErrSnapshot, s.topics.len, n)
	}
	return nil
}

package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// fileWorld is a fake that answers pages in files, over a Unix socket.
type fileWorld struct {
	*fake
	c      *Client
	values []string
	stored string // a file of all frames, as they are stored
	inFile atomic.Int64
	plain  atomic.Int64 // requests for verified frames
	bytes  atomic.Int64 // requests for stored ones that are no files
}

const (
	storedSalt  = 77
	storedStart = 4096
)

// newFileWorld has frames stored under a salt. give makes the descriptor of a page of them,
// and may change that; without it the server knows no files.
func newFileWorld(t *testing.T, give func(w *fileWorld, p *wire.Page) *os.File) *fileWorld {
	t.Helper()
	w := &fileWorld{fake: newFake(t), stored: filepath.Join(t.TempDir(), "f")}
	content := make([]byte, storedStart)
	for i := range 20 {
		v := fmt.Sprintf("value %d", i)
		w.values = append(w.values, v)
		var b record.Builder
		b.Reset(make([]byte, 4096), 9)
		if err := b.Add(&record.Record{Value: []byte(v), Timestamp: 1}, uint64(i+1)); err != nil {
			t.Fatal(err)
		}
		frame, err := b.Finish(uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		w.store(slices.Clone(frame))
		record.Stamp(frame, uint64(i), 0, storedSalt)
		content = append(content, frame...)
		content = append(content, make([]byte, -len(content)&(record.FrameAlign-1))...)
	}
	if err := os.WriteFile(w.stored, content, 0o600); err != nil {
		t.Fatal(err)
	}
	w.on = func(s *fakeConn, h wire.Head, msg, raw []byte) bool {
		if h.Key != wire.KeyFetch {
			return false
		}
		m, err := wire.Request(h.Key, msg)
		if err != nil {
			t.Error(err)
			return false
		}
		f := m.(*wire.Fetch)
		switch {
		case !f.Stored:
			w.plain.Add(1)
			return false
		case !f.InFile:
			w.bytes.Add(1)
			return false
		case give == nil:
			w.inFile.Add(1)
			return false
		}
		p, rest, _ := s.page(f.Consumer)
		if len(rest) == 0 {
			s.answer(h, p, nil)
			return true
		}
		w.inFile.Add(1)
		p.Salt, p.FileFrom, p.FileBytes = storedSalt, w.place(p.First), 0
		end := w.place(p.Next)
		p.FileBytes = end - p.FileFrom
		file := give(w, p)
		var enc wire.Encoder
		b := enc.Frame(h.Key, wire.FlagReply, h.ID, p, 0)
		if file == nil {
			s.put(slices.Clone(b))
			return true
		}
		defer file.Close()
		if err := shm.Send(s.nc.(*net.UnixConn), b, file); err != nil {
			t.Logf("send: %v", err)
		}
		return true
	}
	o := Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: 10 * time.Second}
	o.dial = func(context.Context) (net.Conn, error) {
		mine, theirs := socketPair(t)
		w.accept(mine)
		return theirs, nil
	}
	var err error
	if w.c, err = newClient("unix:/fake", o); err != nil {
		t.Fatal(err)
	}
	w.c.main.way = filing
	first, err := w.c.connect(t.Context(), filing)
	if err != nil {
		t.Fatal(err)
	}
	w.c.start(first)
	t.Cleanup(func() { w.c.Close() })
	return w
}

// place is where in the file a frame begins: all are equally long.
func (w *fileWorld) place(offset uint64) uint64 {
	st, err := os.Stat(w.stored)
	if err != nil {
		w.t.Error(err)
		return 0
	}
	return storedStart + offset*uint64(st.Size()-storedStart)/uint64(len(w.values))
}

func (w *fileWorld) open() *os.File {
	f, err := os.Open(w.stored)
	if err != nil {
		w.t.Error(err)
	}
	return f
}

func socketPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		ends[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	return ends[0], ends[1]
}

// readAll reads what there is.
func (w *fileWorld) readAll() (got []string, err error) {
	r, err := w.c.NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromStart()})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	for {
		page, err := r.Fetch(3)
		for i := range page.Records {
			got = append(got, string(page.Records[i].Value))
		}
		if err != nil || page.CaughtUp {
			return got, err
		}
	}
}

// Pages in files are read as others are. Where the file is not what its page says, or does
// not come, the same records are asked for in another way, and come once.
func TestPagesInFiles(t *testing.T) {
	other := func(content func([]byte) []byte) func(*fileWorld, *wire.Page) *os.File {
		return func(w *fileWorld, _ *wire.Page) *os.File {
			b, err := os.ReadFile(w.stored)
			if err != nil {
				w.t.Error(err)
			}
			path := w.stored + ".other"
			if err := os.WriteFile(path, content(b), 0o600); err != nil {
				w.t.Error(err)
			}
			f, err := os.Open(path)
			if err != nil {
				w.t.Error(err)
			}
			return f
		}
	}
	for name, c := range map[string]struct {
		give    func(*fileWorld, *wire.Page) *os.File
		instead string // of pages in files
	}{
		"good":          {give: func(w *fileWorld, _ *wire.Page) *os.File { return w.open() }},
		"no descriptor": {instead: "bytes", give: func(*fileWorld, *wire.Page) *os.File { return nil }},
		"cut":           {instead: "plain", give: other(func(b []byte) []byte { return b[:storedStart+100] })},
		"empty":         {instead: "plain", give: other(func([]byte) []byte { return nil })},
		"payload":       {instead: "plain", give: other(func(b []byte) []byte { b[storedStart+record.HeaderSize+5] ^= 1; return b })},
		"zeros":         {instead: "plain", give: other(func(b []byte) []byte { return make([]byte, len(b)) })},
		"another segment": {instead: "plain", give: other(func(b []byte) []byte {
			for at := storedStart; at < len(b); {
				h, err := record.ParseHead(b[at:], storedSalt)
				if err != nil {
					panic(err)
				}
				record.Stamp(b[at:at+int(h.FrameLen)], h.Base, 0, storedSalt+1)
				at += (int(h.FrameLen) + record.FrameAlign - 1) &^ (record.FrameAlign - 1)
			}
			return b
		})},
		"far behind the end": {instead: "plain", give: func(w *fileWorld, p *wire.Page) *os.File {
			p.FileFrom = -p.FileBytes
			return w.open()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			before := files(t)
			w := newFileWorld(t, c.give)
			got, err := w.readAll()
			if err != nil || !slices.Equal(got, w.values) {
				t.Errorf("read %q, %v", got, err)
			}
			inFile, plain, bytes := w.inFile.Load() > 0, w.plain.Load() > 0, w.bytes.Load() > 0
			if !inFile || plain != (c.instead == "plain") || bytes != (c.instead == "bytes") {
				t.Errorf("asked for pages in files %d times, for verified ones %d times, and for bytes %d times", w.inFile.Load(), w.plain.Load(), w.bytes.Load())
			}
			w.c.Close()
			w.cut()
			w.wg.Wait()
			if n := files(t); n != before {
				t.Errorf("%d descriptors are open, %d before", n, before)
			}
		})
	}
}

// What no server sends ends the page with an error that says so.
func TestHostilePagesInFiles(t *testing.T) {
	for name, give := range map[string]func(*fileWorld, *wire.Page) *os.File{
		"pipe": func(w *fileWorld, _ *wire.Page) *os.File {
			r, out, err := os.Pipe()
			if err != nil {
				w.t.Error(err)
			}
			out.Close()
			return r
		},
		"no salt": func(w *fileWorld, p *wire.Page) *os.File {
			p.Salt = 0
			return w.open()
		},
		"more than a frame": func(w *fileWorld, p *wire.Page) *os.File {
			p.FileBytes = 1 << 40
			return w.open()
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := files(t)
			w := newFileWorld(t, give)
			if got, err := w.readAll(); !errors.Is(err, ErrProtocol) || len(got) != 0 {
				t.Errorf("read %q, %v", got, err)
			}
			w.c.Close()
			w.cut()
			w.wg.Wait()
			if n := files(t); n != before {
				t.Errorf("%d descriptors are open, %d before", n, before)
			}
		})
	}
}

// A server that knows nothing of files answers as it always did.
func TestServerWithoutFiles(t *testing.T) {
	w := newFileWorld(t, nil)
	if got, err := w.readAll(); err != nil || !slices.Equal(got, w.values) {
		t.Errorf("read %q, %v", got, err)
	}
	if w.inFile.Load() == 0 || w.plain.Load() != 0 {
		t.Errorf("it was asked for pages in files %d times, and for verified ones %d times", w.inFile.Load(), w.plain.Load())
	}
}

// A page in a file that nobody asked for ends the connection.
func TestFileThatWasNotAskedFor(t *testing.T) {
	f := newFake(t)
	f.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
		if h.Key == wire.KeyFetch {
			s.answer(h, &wire.Page{Cursor: fakeCursor(0), Salt: 5, FileBytes: 100}, nil)
			return true
		}
		return false
	}
	r, err := f.client(t, Options{RequestTimeout: 300 * time.Millisecond}).NewConsumer(api.ConsumerOptions{Topic: "t", From: api.FromStart()})
	if err != nil {
		t.Fatal(err)
	}
	if page, err := r.Fetch(1); err == nil || len(page.Records) != 0 {
		t.Errorf("it hands out %d records and says %v", len(page.Records), err)
	}
	if f.mu.Lock(); f.dials < 2 {
		t.Error("the connection goes on")
	}
	f.mu.Unlock()
}

// files counts the descriptors of regular files.
func files(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if st, err := os.Stat(filepath.Join("/proc/self/fd", d.Name())); err == nil && (st.Mode().IsRegular() || st.Mode()&os.ModeNamedPipe != 0) {
			n++
		}
	}
	return n
}

// Whoever has no descriptor left for the memory hears of that, and not that the server is none.
func TestNoDescriptorForTheMemory(t *testing.T) {
	w := newFake(t)
	w.on = func(s *fakeConn, h wire.Head, _, _ []byte) bool {
		if h.Key != wire.KeyAttach {
			return false
		}
		s.answer(h, &wire.AttachReply{ArenaBytes: 1 << 20, Slots: 64, Layout: shm.Version}, nil)
		return true
	}
	o := Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: 10 * time.Second}
	o.dial = func(context.Context) (net.Conn, error) {
		mine, theirs := socketPair(t)
		w.accept(mine)
		return theirs, nil
	}
	c, err := newClient("unix:/fake", o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.connect(t.Context(), sharing); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("connecting: %v", err)
	}
}

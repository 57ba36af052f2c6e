package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// drainSkips is drainClient with what was moved past.
func drainSkips(t testing.TB, c *client.Consumer, max int) (got []entry, skips []Skip) {
	t.Helper()
	for {
		page, err := c.Fetch(max)
		must(t, err)
		got, skips = keep(got, page), append(skips, page.Skips...)
		if page.CaughtUp {
			return got, skips
		}
	}
}

// Whoever reads closed segments from their files reads what others do, record by record,
// over rolls, splits, merges, expiry and codecs at random, from the start, from a cursor
// and from where a group is.
func TestSharedReadersSeeTheSame(t *testing.T) {
	for seed := range uint64(rounds(4)) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { readersSeeTheSame(t, rand.New(rand.NewPCG(seed, 17))) })
	}
}

func readersSeeTheSame(t *testing.T, rng *rand.Rand) {
	now := newClock()
	e := open(t, t.TempDir(), Options{now: now.Now, SegmentBytes: 4 << 20})
	needBuffered(t, e)
	bound(t, e, Policy{MaxAge: Limit(10_000)})
	s := shareMemory(t, e, server.Options{})
	far, near := dial(t, serve(t, e)), s.dial(1<<20)
	ranges := []uint32{0}
	seq := 0
	group := "" // where the group of both readers is
	step := func() {
		switch rng.IntN(6) {
		case 0:
			_, err := e.Roll(within(t), "t")
			must(t, err)
		case 1:
			i := rng.IntN(len(ranges))
			left, right, err := e.SplitRange(within(t), "t", ranges[i])
			must(t, err)
			ranges = append(slices.Delete(ranges, i, i+1), left, right)
		case 2:
			if i := rng.IntN(len(ranges)); i > 0 {
				child, err := e.MergeRanges(within(t), "t", ranges[i-1], ranges[i])
				if errors.Is(err, api.ErrNotBuddies) {
					return
				}
				must(t, err)
				ranges = append(slices.Delete(ranges, i-1, i+1), child)
			}
		case 3:
			now.Add(time.Duration(rng.IntN(8)) * time.Second)
			retain(t, e)
		default:
			codec, batch := []Codec{None, S2, Zstd}[rng.IntN(3)], 4<<10<<rng.IntN(9)
			p := newProducer(t, e, ProducerOptions{Topic: "t", Codec: codec, BatchBytes: batch})
			for range 1 + rng.IntN(1500) {
				seq++
				r := Record{Key: text("%d", seq%97), Value: text("%d %0*d", seq, rng.IntN(2000), seq)}
				if seq%7 == 0 {
					r.Headers = []Header{{Key: []byte("n"), Value: text("%d", seq)}}
				}
				must(t, p.Append(within(t), r, nil))
			}
			must(t, p.Close(within(t)))
		}
	}
	same := func(o ConsumerOptions) {
		t.Helper()
		max := 1 + rng.IntN(2000)
		linked, skips := drain(t, newConsumer(t, e, o))
		for i, what := range []string{"over TCP", "from files"} {
			r, err := []*client.Client{far, near}[i].NewConsumer(o)
			must(t, err)
			got, gotSkips := drainSkips(t, r, max)
			if !reflect.DeepEqual(byRange(got), byRange(linked)) || !slices.Equal(gotSkips, skips) {
				t.Fatalf("%s %d records and skips %+v are read, a linked program gets %d and %+v", what, len(got), gotSkips, len(linked), skips)
			}
			if i == 1 && o.Group != "" {
				must(t, r.Commit(within(t)))
				group = r.Cursor()
			}
			must(t, r.Close())
		}
	}
	for range 3 {
		for range 12 {
			step()
		}
		same(ConsumerOptions{Topic: "t", From: FromStart()})
		r, err := near.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
		must(t, err)
		for range rng.IntN(4) {
			_, err := r.Fetch(1 + rng.IntN(300))
			must(t, err)
		}
		same(ConsumerOptions{Topic: "t", From: FromCursor(r.Cursor())})
		must(t, r.Close())
		same(ConsumerOptions{Topic: "t", Group: "g"})
	}
	if group == "" || s.Stats().Shared.Files == 0 {
		t.Errorf("nothing was read from files: %+v", s.Stats().Shared)
	}
}

// asker is a bare client that asks for pages in files, on a connection without memory.
type asker struct {
	*bare
	t        *testing.T
	consumer uint32
}

func (a *asker) open(topic string) error {
	m, err := a.call(wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: topic, From: byte(api.AtStart)})
	if err == nil {
		a.consumer = m.(*wire.OpenConsumerReply).Consumer
	}
	return err
}

func (a *asker) fetch() (*wire.Page, error) {
	m, err := a.call(wire.KeyFetch, &wire.Fetch{Consumer: a.consumer, MaxBytes: 1 << 20, Stored: true, InFile: true})
	if err != nil {
		return nil, err
	}
	return m.(*wire.Page), nil
}

// file is the next page's, which is one in a file.
func (a *asker) file() (*wire.Page, *os.File) {
	a.t.Helper()
	p, err := a.fetch()
	must(a.t, err)
	f := a.nc.File()
	if f == nil || p.FileBytes == 0 || p.Salt == 0 {
		a.t.Fatalf("a page of %d bytes in a file, salt %d, descriptor %v", p.FileBytes, p.Salt, f)
	}
	a.t.Cleanup(func() { f.Close() })
	return p, f
}

func ask(t *testing.T, path, user, password string) *asker {
	t.Helper()
	b, err := dialSocket(path)
	must(t, err)
	b.nc.Most = 1 << 10
	t.Cleanup(func() { b.nc.Close() })
	if user != "" {
		_, err := b.call(wire.KeyAuthenticate, &wire.Authenticate{Mechanism: "password", User: user, Secret: []byte(password)})
		must(t, err)
	}
	return &asker{bare: b, t: t}
}

// A client gets descriptors of what it may read and of nothing else, for as long as it may,
// and cannot write through them.
func TestSharedReaderMayReadOneTopic(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 4 << 20})
	needBuffered(t, e)
	for _, topic := range []string{"mine", "other"} {
		newTopic(t, e, topic)
		fillSegment(t, e, topic, "of "+topic)
	}
	may := Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "mine"}
	firstUser(t, e)
	must(t, e.PutUser(within(t), "alice", rightSecret, UserOptions{Grants: []Grant{may}}))
	so := server.Options{}
	e.Authenticator(AuthOptions{}).Guard(&so)
	s := shareMemory(t, e, so)
	a := ask(t, s.path, "alice", rightSecret)
	code := func(err error) wire.Code {
		if we := (*wire.Error)(nil); errors.As(err, &we) {
			return we.Code
		}
		return 0
	}
	if err := a.open("other"); code(err) != wire.CodePermissionDenied {
		t.Errorf("opening another topic says %v", err)
	}
	a.consumer = 7
	if _, err := a.fetch(); code(err) != wire.CodeNoSuchHandle {
		t.Errorf("asking for nobody's page says %v", err)
	}
	must(t, a.open("mine"))
	p, f := a.file()
	b, err := os.ReadFile(segmentFiles(t, e, "mine")[0])
	must(t, err)
	all := make([]byte, len(b)+1)
	if n, _ := f.ReadAt(all, 0); !bytes.Equal(all[:n], b) {
		t.Errorf("the descriptor shows %d bytes, the file has %d", n, len(b))
	}
	if bytes.Contains(b, []byte("of other ")) || !bytes.Contains(b[p.FileFrom:p.FileFrom+p.FileBytes], []byte("of mine ")) {
		t.Error("the file holds what it should not, or not what it should")
	}
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.EBADF) {
		t.Errorf("writing says %v", err)
	}
	if err := f.Truncate(0); err == nil {
		t.Error("the client can cut the file")
	}
	if _, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_WRITE, syscall.MAP_SHARED); !errors.Is(err, syscall.EACCES) {
		t.Errorf("mapping it for writing says %v", err)
	}
	must(t, e.Revoke(within(t), "alice", may))
	if _, err := a.fetch(); code(err) != wire.CodePermissionDenied {
		t.Errorf("asking on without the permission says %v", err)
	}
	if a.nc.File() != nil {
		t.Error("a descriptor came with a refusal")
	}
}

// A client that does not take its answers has few descriptors on their way, whatever it
// asks for; what it then gets is the same.
func TestSharedReaderThatDoesNotRead(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 4 << 20})
	needBuffered(t, e)
	newTopic(t, e, "t")
	fillSegment(t, e, "t", "value")
	s := shareMemory(t, e, server.Options{})
	a := ask(t, s.path, "", "")
	const consumers = 40
	var ids []uint32
	for range consumers {
		must(t, a.open("t"))
		ids = append(ids, a.consumer)
	}
	for _, id := range ids {
		a.last++
		_, err := a.nc.Write(a.enc.Frame(wire.KeyFetch, 0, a.last, &wire.Fetch{Consumer: id, MaxBytes: 300_000, Stored: true, InFile: true}, 0))
		must(t, err)
	}
	for end := time.Now().Add(patience); s.Stats().Shared.Files == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(50 * time.Millisecond) // for those that would be too many: fewer are no failure
	given := s.Stats().Shared.Files
	if given == 0 || given > 8 {
		t.Errorf("%d descriptors are on their way", given)
	}
	files := 0
	for range consumers {
		_, m, err := a.read()
		must(t, err)
		if p := m.(*wire.Page); p.FileBytes > 0 {
			files++
			if f := a.nc.File(); f == nil {
				t.Error("a page in a file came without its descriptor")
			} else {
				f.Close()
			}
		} else if p.Next == p.First {
			t.Errorf("%+v", p)
		}
	}
	if files == 0 || files == consumers {
		t.Errorf("%d of %d pages are in files", files, consumers)
	}
}

// A file that a client was given is not used for another segment, while its server runs or
// after another one has begun; those of others are. Nor does it take any space once its
// segment is deleted, although the client does not let go of it.
func TestGivenFileIsNotUsedAgain(t *testing.T) {
	dir := t.TempDir()
	o := Options{SegmentBytes: 4 << 20}
	e := open(t, dir, o)
	needBuffered(t, e)
	var given []*os.File
	var before [][]byte
	hold := func(s *sharer, topic string) {
		newTopic(t, e, topic)
		fillSegment(t, e, topic, "of "+topic)
		a := ask(t, s.path, "", "")
		must(t, a.open(topic))
		_, f := a.file()
		b, err := os.ReadFile(segmentFiles(t, e, topic)[0])
		must(t, err)
		given, before = append(given, f), append(before, b)
		a.nc.Close()
	}
	s := shareMemory(t, e, server.Options{})
	hold(s, "a")
	hold(s, "b")
	must(t, e.DeleteTopic(within(t), "a"))
	s.stop(within(t))
	shut(t, e)
	e = open(t, dir, o)
	must(t, e.DeleteTopic(within(t), "b"))
	var seen []os.FileInfo
	again := 0
	for i := range rounds(6) {
		topic := fmt.Sprint("later", i)
		newTopic(t, e, topic)
		fillSegment(t, e, topic, "secret")
		st, err := os.Stat(segmentFiles(t, e, topic)[0])
		must(t, err)
		for j, f := range given {
			own, err := f.Stat()
			must(t, err)
			got := make([]byte, len(before[j])+1)
			n, _ := f.ReadAt(got, 0)
			if os.SameFile(own, st) || !bytes.HasPrefix(before[j], got[:n]) {
				t.Fatalf("round %d: the file of a descriptor was used again", i)
			}
		}
		if slices.ContainsFunc(seen, func(f os.FileInfo) bool { return os.SameFile(f, st) }) {
			again++
		}
		seen = append(seen, st)
		must(t, e.DeleteTopic(within(t), topic))
	}
	if again == 0 {
		t.Error("no file was used again")
	}
	for _, f := range given {
		eventually(t, "the space is given back", func() bool {
			st, err := f.Stat()
			must(t, err)
			return st.Size() == 0 && st.Sys().(*syscall.Stat_t).Blocks == 0
		})
	}
}

// A reader whose file was used again all the same, because somebody took the mark from it,
// or whose file was written into, hands out nothing of that.
func TestSharedReaderMeetsOtherBytes(t *testing.T) {
	dir := t.TempDir()
	o := Options{SegmentBytes: 4 << 20}
	e := open(t, dir, o)
	needBuffered(t, e)
	newTopic(t, e, "a")
	all := fillSegment(t, e, "a", "of a")
	s := shareMemory(t, e, server.Options{})
	r, err := s.dial(1 << 20).NewConsumer(ConsumerOptions{Topic: "a", From: FromStart()})
	must(t, err)
	page, err := r.Fetch(1)
	must(t, err)
	got := values(keep(nil, page))
	for end := time.Now().Add(patience); s.Stats().Shared.Files < 2 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // the page behind is on its way, or there
	}
	path := segmentFiles(t, e, "a")[0]
	st, err := os.Stat(path)
	must(t, err)
	s.stop(within(t))
	shut(t, e)
	if openFiles(t, st) == 0 {
		t.Fatal("the reader has no page that it did not look at")
	}
	must(t, os.Chmod(path, 0o600))
	e = open(t, dir, o)
	must(t, e.DeleteTopic(within(t), "a"))
	newTopic(t, e, "b")
	fillSegment(t, e, "b", "secret")
	next, err := os.Stat(segmentFiles(t, e, "b")[0])
	must(t, err)
	if !os.SameFile(st, next) {
		t.Fatal("the file was not used again")
	}
	s.start(e)
	for {
		page, err = r.Fetch(100)
		if got = append(got, values(keep(nil, page))...); err != nil || page.CaughtUp {
			break
		}
	}
	is(t, err, ErrNoSuchTopic)
	if len(got) >= len(all) || !slices.Equal(got, all[:len(got)]) {
		t.Errorf("%d records, or others than were stored", len(got))
	}
	must(t, r.Close())
}

// openFiles counts the descriptors of this process for a file.
func openFiles(t testing.TB, of os.FileInfo) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, d := range list {
		if st, err := os.Stat(filepath.Join("/proc/self/fd", d.Name())); err == nil && os.SameFile(st, of) {
			n++
		}
	}
	return n
}

// D08: whatever consumers are at when they, or their client, are closed, no descriptor and
// no mapping of a segment is left.
func TestD08SharedReadersLeaveNothing(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 4 << 20})
	needBuffered(t, e)
	newTopic(t, e, "t")
	for range 3 {
		fillSegment(t, e, "t", "value")
	}
	s := shareMemory(t, e, server.Options{})
	held := func() (fds, maps int) {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, d := range list {
			if at, err := os.Readlink(filepath.Join("/proc/self/fd", d.Name())); err == nil && strings.Contains(at, ".seg") {
				fds++
			}
		}
		b, err := os.ReadFile("/proc/self/maps")
		must(t, err)
		return fds, bytes.Count(b, []byte(".seg"))
	}
	read := func(c *client.Client, pages int) *client.Consumer {
		r, err := c.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
		must(t, err)
		for range pages {
			page, err := r.Fetch(10_000)
			must(t, err)
			if page.CaughtUp {
				break
			}
		}
		return r
	}
	c := s.dial(1 << 20)
	must(t, read(c, 1000).Close()) // the engine has its own open from here on
	eventually := func(want int, what string) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			fds, maps := held()
			if maps != 0 {
				t.Fatalf("%s: %d mappings", what, maps)
			}
			if fds == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %d descriptors are open, want %d", what, fds, want)
			}
		}
	}
	base := 3
	eventually(base, "at first")
	most := 0
	for i := range rounds(60) {
		r := read(c, i%20)
		fds, _ := held()
		most = max(most, fds-base)
		must(t, r.Close())
	}
	eventually(base, "behind the consumers' Close")
	if most == 0 || most > 4 {
		t.Errorf("one consumer had up to %d descriptors, the server's among them", most)
	}
	for range 20 {
		read(c, 1) // with a page that comes and is never looked at
	}
	must(t, c.Close())
	eventually(base, "behind the client's Close")

	c = s.dial(1 << 20)
	r := read(c, 1)
	s.cut(e)
	got, _ := drainSkips(t, r, 1000)
	if len(got) == 0 {
		t.Error("nothing was read behind a lost connection")
	}
	must(t, r.Close())
	must(t, c.Close())
	eventually(base, "behind a lost connection")
	if s.Stats().Shared.Files == 0 {
		t.Error("nothing was read from files")
	}
}

package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// saysLent gives a frame the flag that only the engine sets.
func saysLent(t testing.TB, frame []byte) []byte {
	t.Helper()
	h, err := record.ParseHead(frame, 0)
	must(t, err)
	h.Flags = record.FlagLent
	h.Put(frame, 0)
	return frame
}

// spoil changes a byte of a file, where a value is.
func spoil(t testing.TB, files []string, value string) (file string) {
	t.Helper()
	for _, file := range files {
		b, err := os.ReadFile(file)
		must(t, err)
		if at := bytes.Index(b, []byte(value)); at >= 0 {
			flip(t, file, int64(at), 1)
			return file
		}
	}
	t.Fatalf("%q is in none of %v", value, files)
	return ""
}

// A client whose large frames are written from where they lie changes some of them and
// changes them back in time: what is stored of these is not what was acknowledged, which
// nobody has seen. It keeps nobody from reading the topic: every kind of reader, and a group
// of them, gets all else and is told what it skips, before and after a start, and the
// damage is counted, logged and told of. (C10)
func TestC10_DamagedLentFramesAreSkipped(t *testing.T) {
	var log logBook
	o := Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	dir := t.TempDir()
	e := open(t, dir, o)
	newTopic(t, e, "t")
	m := newSharedMemory(t, 4, 64<<10)
	unregister, err := e.Register(m.mem)
	must(t, err)
	big := newProducer(t, e, ProducerOptions{Topic: "t", BatchBytes: 64 << 10})
	fill := func(from int) (list []string) {
		for i := range 40 {
			value := fmt.Sprintf("%d %s", from+i, strings.Repeat("x", 8<<10))
			must(t, big.Append(within(t), Record{Value: []byte(value)}, nil))
			list = append(list, value)
		}
		must(t, big.Flush(within(t)))
		return list
	}
	l := &lender{TB: t, m: m}
	l.p, err = e.Backend().OpenProducer(within(t), "t", 7, false)
	must(t, err)
	var wanted []string
	seq := uint64(1)
	lend := func(keys ...string) {
		_, err := l.wait(frameOf(t, 7, seq, keys...))
		must(t, err)
		seq += uint64(len(keys))
	}
	for i := range 3 {
		wanted = append(wanted, fill(1000*i)...)
		lend("whole")
		wanted = append(wanted, fmt.Sprint("whole ", seq-1))
		lend(fmt.Sprint("spoilt-", i), "more", "more")
		wanted = append(wanted, fill(1000*i+500)...)
		if i < 2 { // the last one stays open
			_, err = e.Roll(within(t), "t")
			must(t, err)
		}
	}
	must(t, l.p.Close(within(t)))
	must(t, unregister())
	must(t, big.Close(within(t)))
	files := segmentFiles(t, e, "t")
	for i := range 3 {
		spoil(t, files, fmt.Sprint("spoilt-", i, " "))
	}

	check := func(what string, got []entry, skips []Skip) {
		t.Helper()
		if !slices.Equal(values(got), wanted) {
			t.Errorf("%s: %d records, want %d", what, len(got), len(wanted))
		}
		var from []uint64
		for _, s := range skips {
			if from = append(from, s.From); s.Offsets != 3 || !s.Damaged {
				t.Errorf("%s: skips %+v", what, s)
			}
		}
		if want := []uint64{41, 125, 209}; !slices.Equal(from, want) {
			t.Errorf("%s: skips from %d on, want %d", what, from, want)
		}
	}
	readers := func(when string, e *Engine) {
		t.Helper()
		c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()})
		got, skips := drain(t, c)
		check(when+", records", got, skips)
		must(t, c.Close())
		for _, size := range []int{1, 1 << 20} {
			c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()})
			got, skips, inFiles := drainFrames(t, c, size, false)
			must(t, c.Close())
			check(fmt.Sprintf("%s, pages of %d bytes", when, size), got, skips)
			if inFiles > 0 {
				t.Error("a page that is to be verified came as it is stored")
			}
		}
		s := shareMemory(t, e, server.Options{})
		for name, c := range map[string]*client.Client{"TCP": dial(t, serve(t, e)), "shared memory": s.dial(1 << 20)} {
			r, err := c.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
			must(t, err)
			got, skips := drainSkips(t, r, 100)
			check(when+", "+name, got, skips)
			must(t, r.Close())
		}
		if fs := e.Opened().IO.FileSystem; s.Stats().Shared.Files == 0 && (fs == "ext4" || fs == "xfs") {
			t.Error("no page was read from its file")
		}
		d, err := e.Describe(within(t), "t")
		must(t, err)
		for i := range 3 {
			if said := d.AllRanges[0].Segments[i].Damage; !strings.Contains(said, "reads skip its records") || !strings.Contains(said, files[i]) {
				t.Errorf("%s: segment %d: %q", when, i, said)
			}
		}
		if n := e.Stats().Store.Damages; n != 3 || d.Damaged != 3 {
			t.Errorf("%s: %d damages are counted, in %d segments", when, n, d.Damaged)
		}
	}
	readers("at first", e)
	if n := log.count("segment file is damaged"); n != 3 {
		t.Errorf("logged %d times", n)
	}

	// A group stops in the middle, and another of its consumers goes on after a start.
	ctx := within(t)
	c, err := dial(t, serve(t, e)).NewConsumer(ConsumerOptions{Topic: "t", Group: "g", From: FromStart()})
	must(t, err)
	var got []entry
	var skips []Skip
	for len(got) < 100 {
		page, err := c.Fetch(10)
		must(t, err)
		got, skips = keep(got, page), append(skips, page.Skips...)
	}
	must(t, c.Commit(ctx))
	must(t, c.Close())
	shut(t, e)
	e = open(t, dir, o)
	readers("after a start", e)
	c, err = dial(t, serve(t, e)).NewConsumer(ConsumerOptions{Topic: "t", Group: "g"})
	must(t, err)
	rest, more := drainSkips(t, c, 10)
	check("a group", append(got, rest...), append(skips, more...))
	must(t, c.Commit(ctx))
	must(t, c.Close())
	g, err := e.DescribeGroup(ctx, "t", "g")
	must(t, err)
	if g.Lag != 0 {
		t.Errorf("the group is at %+v", g)
	}

	// Who lent them comes back: what was acknowledged is a repeat, damaged or not.
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	pl, outcome, err := sendFrame(t, p, frameOf(t, 7, seq-3, fmt.Sprint("spoilt-", 2), "more", "more"))
	must(t, err)
	must(t, outcome)
	if !pl.Duplicate {
		t.Errorf("stored again: %+v", pl)
	}
	shut(t, e)
	if n := lentDamage(t, dir); n != 9 {
		t.Errorf("%d records are found damaged", n)
	}
}

// No client can send a frame that says that it was lent, over whatever way: its damage would
// be skipped where that of others is told. (C10)
func TestC10_NobodySendsALentFrame(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	bad, good := saysLent(t, frameOf(t, 7, 1, "a", "b")), frameOf(t, 7, 1, "a", "b")
	m := newSharedMemory(t, 4, 64<<10)
	unregister, err := e.Register(m.mem)
	must(t, err)
	l := &lender{TB: t, m: m}
	l.p, err = e.Backend().OpenProducer(within(t), "t", 7, false)
	must(t, err)
	err = l.lend(bad, func(Placement, error) { t.Error("it was taken") })
	is(t, err, record.ErrCorrupt)
	must(t, l.p.Close(within(t)))
	must(t, unregister())

	refused := func(how string, b *bare, id uint32) {
		t.Helper()
		var said *wire.Error
		soon(t, "the refusal", func() {
			for {
				if h, m, _ := b.read(); h.ID == id || h.ID == 0 {
					said, _ = m.(*wire.Error)
					return
				}
			}
		})
		if said == nil || said.Code != wire.CodeCorruptFrame || !strings.Contains(said.Detail, "flags") {
			t.Errorf("%s: %+v", how, said)
		}
	}
	large := saysLent(t, frameWith(7, 1, make([]byte, 100_000)))
	for how, o := range map[string]server.Options{"copied": {}, "written from where it lies": trusting()} {
		s := shareMemory(t, e, o)
		b, err := dialBare(s.path)
		must(t, err)
		p, err := b.producer("t", 7)
		must(t, err)
		mem, _ := b.g.Arena().Alloc(len(large))
		copy(mem, large)
		b.g.Submit(1<<31, p, mem)
		b.g.Ring()
		refused(how, b, 1<<31)
		b.leave()

		socket, err := dialSocket(s.path)
		must(t, err)
		p, err = socket.producer("t", 7)
		must(t, err)
		_, err = socket.nc.Write(append(socket.enc.Frame(wire.KeyProduce, 0, 99, &wire.Produce{Producer: p}, len(bad)), bad...))
		must(t, err)
		refused("over the socket", socket, 99)
		must(t, socket.nc.Close())
	}
	if st := e.Stats().Store; st.Records != 0 {
		t.Errorf("%d records are stored", st.Records)
	}
	p := newProducer(t, e, ProducerOptions{Topic: "t", ID: 7})
	_, outcome, err := sendFrame(t, p, good)
	must(t, err)
	must(t, outcome)
	want(t, e, "t", "a 1", "b 2")
}

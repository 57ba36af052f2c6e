package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/record"
)

// storedEntries takes a page apart that lies in a file, or one that does not. The page's
// file is closed.
func storedEntries(t testing.TB, page FramePage) (got []entry) {
	t.Helper()
	b := page.Frames
	if page.File != nil {
		defer page.File.Close()
		b = make([]byte, page.Length)
		_, err := page.File.ReadAt(b, page.Position)
		must(t, err)
	}
	at := page.First
	for pos := 0; pos < len(b); {
		batch, err := record.Verify(b[pos:], page.Salt, nil)
		must(t, err)
		for i := range batch.Len() {
			if o := batch.Offset(i); o >= page.First && o < page.Next {
				for _, skip := range page.Skips {
					if skip.Range == page.Range && skip.From == at {
						at += skip.Offsets
					}
				}
				if o != at {
					t.Fatalf("offset %d, want %d", o, at)
				}
				at++
				got = append(got, entry{Range: page.Range, Offset: o, Value: slices.Clone(batch.Value(i))})
			}
		}
		pos += len(batch.Frame())
		if page.File == nil {
			continue
		}
		pos = (pos + record.FrameAlign - 1) / record.FrameAlign * record.FrameAlign
		for gap := 0; pos+4 <= len(b) && binary.LittleEndian.Uint32(b[pos:]) == 0; pos += record.FrameAlign {
			if gap += record.FrameAlign; gap >= disk.Block {
				t.Fatalf("%d zeros or more in front of byte %d", gap, pos)
			}
		}
	}
	if at != page.Next {
		t.Errorf("the page ends at offset %d, and says %d", at, page.Next)
	}
	return got
}

// drainFrames reads pages of frames until the consumer has caught up, and counts those
// that lay in a file.
func drainFrames(t testing.TB, c *Consumer, size int, stored bool) (got []entry, skips []Skip, inFiles int) {
	t.Helper()
	for {
		page, err := c.FetchFrames(size, stored)
		must(t, err)
		if page.File != nil {
			inFiles++
			if len(page.Frames) != 0 || page.Salt == 0 || page.Length > int64(max(size, 64<<10+8<<20)) {
				t.Fatalf("a page of %d bytes and %d of a file, salt %d", len(page.Frames), page.Length, page.Salt)
			}
		}
		got = append(got, storedEntries(t, page)...)
		if skips = append(skips, page.Skips...); page.CaughtUp {
			return got, skips, inFiles
		}
	}
}

// needBuffered skips a test where files are not sent from the page cache.
func needBuffered(t testing.TB, e *Engine) {
	t.Helper()
	if fs := e.Opened().IO.FileSystem; fs != "ext4" && fs != "xfs" {
		t.Skipf("files on %s are read", fs)
	}
}

func byRange(list []entry) map[uint32][]entry {
	m := map[uint32][]entry{}
	for _, e := range list {
		m[e.Range] = append(m[e.Range], e)
	}
	return m
}

// Pages that lie in files hold what verified ones hold, over rolls, a split, small and
// large frames of every codec, and records that expired.
func TestStoredFramesAreTheSame(t *testing.T) {
	now := newClock()
	e := open(t, t.TempDir(), Options{now: now.Now})
	bound(t, e, Policy{MaxAge: Limit(1000)})
	put := func(codec Codec, batch, n int) {
		p := newProducer(t, e, ProducerOptions{Topic: "t", Codec: codec, BatchBytes: batch})
		for i := range n {
			must(t, p.Append(within(t), Record{Key: text("%d", i), Value: text("%v %d %0800d", codec, i, i*i)}, nil))
		}
		must(t, p.Close(within(t)))
	}
	roll := func() {
		_, err := e.Roll(within(t), "t")
		must(t, err)
	}
	put(None, 64<<10, 300)
	roll()
	now.Add(2e9)
	if r := retain(t, e); r.Expired != 1 {
		t.Fatalf("%+v", r)
	}
	must(t, e.SetPolicy(within(t), "p", Policy{MaxAge: Limit(1e9)}))
	for i, codec := range []Codec{None, S2, Zstd} {
		put(codec, 4<<10, 300)
		put(codec, 256<<10, 2000)
		if i == 1 {
			_, _, err := e.SplitRange(within(t), "t", 0)
			must(t, err)
		}
		put(codec, 64<<10, 500)
		roll()
		put(codec, 1<<20, 1500) // also a page's worth that is not closed at the end
	}
	linked, expect := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}))
	for i := range linked {
		linked[i] = entry{Range: linked[i].Range, Offset: linked[i].Offset, Value: linked[i].Value}
	}
	if len(expect) != 1 || expect[0].Offsets != 300 {
		t.Fatalf("skips %+v", expect)
	}
	for _, size := range []int{1, 70 << 10, 1 << 20} {
		for _, stored := range []bool{false, true} {
			got, skips, inFiles := drainFrames(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()}), size, stored)
			if !reflect.DeepEqual(byRange(got), byRange(linked)) || !slices.Equal(skips, expect) {
				t.Errorf("pages of %d bytes, stored %v: %d records and skips %+v, want %d", size, stored, len(got), skips, len(linked))
			}
			if want := stored && size > 1; (inFiles > 3) != want {
				if want {
					needBuffered(t, e)
				}
				t.Errorf("pages of %d bytes, stored %v: %d in files", size, stored, inFiles)
			}
		}
	}
	// From the middle of a frame, and by cursor.
	c := newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromStart()})
	page, err := c.Fetch(1)
	for err == nil && len(page.Records) == 0 {
		page, err = c.Fetch(1)
	}
	must(t, err)
	half, _, _ := drainFrames(t, newConsumer(t, e, ConsumerOptions{Topic: "t", From: FromCursor(c.Cursor())}), 1<<20, true)
	if len(half) != len(linked)-1 {
		t.Errorf("%d records behind a cursor, want %d", len(half), len(linked)-1)
	}
}

// fillSegment stores about 4 MiB of values that say which, and closes the segment.
func fillSegment(t testing.TB, e *Engine, topic, say string) (all []string) {
	t.Helper()
	// Full batches: of many short ones, each in blocks of its own, the file would roll by itself.
	p := newProducer(t, e, ProducerOptions{Topic: topic, BatchBytes: 64 << 10, Linger: patience})
	for i := range 950 {
		v := fmt.Sprintf("%s %d %04000d", say, i, i)
		all = append(all, v)
		must(t, p.Append(within(t), Record{Key: []byte("k"), Value: []byte(v)}, nil))
	}
	must(t, p.Close(within(t)))
	_, err := e.Roll(within(t), topic)
	must(t, err)
	return all
}

// C12: a page that is on its way out of a file keeps the file from being used again, and
// the segment that gets it next is served as it is.
func TestC12FileUsedAgain(t *testing.T) {
	e := open(t, t.TempDir(), Options{SegmentBytes: 4 << 20})
	needBuffered(t, e)
	c := dial(t, serve(t, e))
	var seen []os.FileInfo
	reused := 0
	for i := range rounds(8) {
		topic := fmt.Sprintf("t%d", i)
		newTopic(t, e, topic)
		all := fillSegment(t, e, topic, topic)
		st, err := os.Stat(segmentFiles(t, e, topic)[0])
		must(t, err)
		if slices.ContainsFunc(seen, func(f os.FileInfo) bool { return os.SameFile(f, st) }) {
			reused++
		}
		seen = append(seen, st)
		r, err := c.NewConsumer(ConsumerOptions{Topic: topic, From: FromStart()})
		must(t, err)
		if got := values(drainClient(t, r)); !slices.Equal(got, all) {
			t.Fatalf("round %d: read %d records, or others than were stored", i, len(got))
		}
		must(t, r.Close())

		held := newConsumer(t, e, ConsumerOptions{Topic: topic, From: FromStart()})
		page, err := held.FetchFrames(1<<20, true)
		must(t, err)
		if page.File == nil {
			t.Fatalf("round %d: a page of %d bytes, and not of a file", i, len(page.Frames))
		}
		must(t, e.DeleteTopic(within(t), topic))
		newTopic(t, e, "next")
		fillSegment(t, e, "next", "another")
		next, err := os.Stat(segmentFiles(t, e, "next")[0])
		if err != nil || os.SameFile(next, st) {
			t.Fatalf("round %d: the file of a page was used again: %v", i, err)
		}
		seen = append(seen, next)
		if got := storedEntries(t, page); string(got[0].Value) != all[0] {
			t.Fatalf("round %d: the page holds %.20q", i, got[0].Value)
		}
		must(t, e.DeleteTopic(within(t), "next"))
		must(t, held.Close())
	}
	if reused == 0 {
		t.Error("no file was used again")
	}
}

// Damage in a closed segment is never taken for its end, nor handed out: the client is
// told of file and byte, as a linked program is, and gets all records before it. What
// somebody accepted as lost is skipped.
func TestStoredFramesDamaged(t *testing.T) {
	cases := map[string]func(t *testing.T, path string){
		"payload": func(t *testing.T, p string) { flip(t, p, segfile.DataStart+1_500_000, 64) },
		"head":    func(t *testing.T, p string) { flip(t, p, frameNear(t, p, 1_500_000), 64) },
		"zeros": func(t *testing.T, p string) {
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			must(t, err)
			_, err = f.WriteAt(make([]byte, 200_000), frameNear(t, p, 1_500_000))
			must(t, errors.Join(err, f.Close()))
		},
		"cut": func(t *testing.T, p string) { must(t, os.Truncate(p, segfile.DataStart+1_500_000)) },
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			e := open(t, dir, Options{})
			needBuffered(t, e)
			newTopic(t, e, "t")
			all := fillSegment(t, e, "t", "value")
			path := segmentFiles(t, e, "t")[0]
			damage(t, path)
			s := shareMemory(t, e, server.Options{})
			near, far := s.dial(1<<20), dial(t, serve(t, e))
			readBy := func(c *client.Client) (got []string, skips []Skip, err error) {
				linked, lerr := readUntil(t, e, "t")
				r, err := c.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
				must(t, err)
				defer r.Close()
				for {
					page, err := r.Fetch(7)
					got = append(got, values(keep(nil, page))...)
					skips = append(skips, page.Skips...)
					if err == nil && !page.CaughtUp {
						continue
					}
					if !slices.Equal(got, linked) || (err == nil) != (lerr == nil) {
						t.Fatalf("the client reads %d records and %v, a linked program %d and %v", len(got), err, len(linked), lerr)
					}
					_, again := r.Fetch(7)
					if (again == nil) != (err == nil) {
						t.Errorf("first %v, then %v", err, again)
					}
					return got, skips, err
				}
			}
			readBoth := func() (got []string, skips []Skip, err error) {
				got, skips, err = readBy(far)
				fromFile, fileSkips, ferr := readBy(near)
				if !slices.Equal(got, fromFile) || !slices.Equal(skips, fileSkips) || fmt.Sprint(err) != fmt.Sprint(ferr) {
					t.Errorf("from the file %d records, skips %v and %v, over TCP %d, %v and %v", len(fromFile), fileSkips, ferr, len(got), skips, err)
				}
				return got, skips, err
			}
			got, skips, err := readBoth()
			is(t, err, ErrDamaged, filepath.Base(path), "byte")
			if len(got) == 0 || len(got) == len(all) || !slices.Equal(got, all[:len(got)]) || len(skips) != 0 {
				t.Fatalf("%d records before the damage, skips %v", len(got), skips)
			}
			before := len(got)

			d, err := disk.Open(filepath.Join(dir, "log"), disk.Options{ArenaBytes: 1 << 20})
			must(t, err)
			holes, err := segfile.AcceptLoss(d, strings.TrimPrefix(path, filepath.Join(dir, "log")+"/"))
			must(t, errors.Join(err, d.Close()))
			if len(holes) != 1 {
				t.Fatalf("accepted %+v", holes)
			}
			got, skips, err = readBoth()
			must(t, err)
			if s.Stats().Shared.Files == 0 && name != "cut" { // what is not whole is not given
				t.Error("nothing was read from the file")
			}
			if len(skips) != 1 || skips[0].From != uint64(before) || !skips[0].Damaged || len(got)+int(skips[0].Offsets) != len(all) {
				t.Errorf("%d records and skips %+v of %d records", len(got), skips, len(all))
			}
		})
	}
}

// frameNear is the position of the first frame at least n bytes behind a file's first.
func frameNear(t testing.TB, path string, n int64) int64 {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	for at := segfile.DataStart + n&^(record.FrameAlign-1); ; at += record.FrameAlign {
		if string(b[at:at+4]) == "RFrm" {
			return at
		}
	}
}

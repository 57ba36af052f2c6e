package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
)

// quickly is how often the tests look at the free space.
const quickly = 10 * time.Millisecond

// volume is a small file system of its own.
type volume struct {
	t   *testing.T
	dir string
}

func newVolume(t *testing.T, megabytes int) *volume {
	t.Helper()
	v := &volume{t, t.TempDir()}
	if err := syscall.Mount("tmpfs", v.dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Skipf("cannot mount a small volume, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(v.dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return v
}

func (v *volume) data() string   { return filepath.Join(v.dir, "data") }
func (v *volume) filler() string { return filepath.Join(v.dir, "filler") }

func (v *volume) free() int64 {
	v.t.Helper()
	var st syscall.Statfs_t
	must(v.t, syscall.Statfs(v.dir, &st))
	return int64(st.Bavail) * st.Bsize
}

// fill takes all the space there is but for so many bytes.
func (v *volume) fill(left int64) {
	v.t.Helper()
	f, err := os.OpenFile(v.filler(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(v.t, err)
	defer f.Close()
	for v.free() > left {
		_, err := f.Write(make([]byte, min(v.free()-left, 1<<20)))
		if errors.Is(err, syscall.ENOSPC) {
			break
		}
		must(v.t, err)
	}
	if n := v.free(); n > left {
		v.t.Fatalf("%d bytes are left", n)
	}
}

// empty gives it back.
func (v *volume) empty() {
	v.t.Helper()
	must(v.t, os.Remove(v.filler()))
}

// numbered checks that a topic holds the records "NNNNNN..." from 0 on, each once and
// in order, and says how many.
func numbered(t testing.TB, e *Engine, topic string, least int) int {
	t.Helper()
	got := readAll(t, e, topic, FromStart())
	for i, v := range got {
		if !strings.HasPrefix(v, fmt.Sprintf("%06d", i)) {
			t.Fatalf("record %d is %.10q", i, v)
		}
	}
	if len(got) < least {
		t.Fatalf("%d records, and %d were acknowledged", len(got), least)
	}
	return len(got)
}

// D01, A14: a volume is filled from outside while somebody produces. There is one
// error, reads and deletes go on, and with space so do appends, in the same engine.
func TestD01FilledFromOutside(t *testing.T) {
	v := newVolume(t, 96)
	e := open(t, v.data(), Options{ReserveBytes: 8 << 20, SegmentBytes: 8 << 20, PoolBytes: 16 << 20, spaceEvery: 500 * time.Millisecond})
	newTopic(t, e, "t")
	newTopic(t, e, "old")
	old := newProducer(t, e, ProducerOptions{Topic: "old"})
	for range 100 {
		produce(t, old, "k", strings.Repeat("o", 100_000))
	}
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	pad := strings.Repeat("x", 100_000)
	next := 0
	send := func() error {
		_, err := p.Produce(within(t), Record{Key: []byte("k"), Value: fmt.Appendf(nil, "%06d%s", next, pad)})
		if err == nil {
			next++
		}
		return err
	}
	for range 50 {
		must(t, send())
	}
	for round := range 3 {
		refused := 0
		for range 2000 {
			v.fill(0) // again: what was made ahead is given back
			if err := send(); err == nil {
				refused = 0
				continue
			} else {
				is(t, err, ErrOutOfSpace, "free space", `"t"`)
			}
			if refused++; refused == 20 {
				break
			}
		}
		if refused < 20 || !e.Stats().Store.OutOfSpace {
			t.Fatalf("refused %d times, and the stats say %v", refused, e.Stats().Store.OutOfSpace)
		}
		numbered(t, e, "t", next)
		if round == 1 { // deleting gives space back, though nothing can be written
			before := v.free()
			must(t, e.DeleteTopic(within(t), "old"))
			eventually(t, "the deleted topic's space comes back", func() bool { return v.free() > before+5<<20 })
		}
		v.empty()
		eventually(t, "appends go on", func() bool {
			err := send()
			if err != nil {
				is(t, err, ErrOutOfSpace)
			}
			return err == nil
		})
		if e.Stats().Store.OutOfSpace {
			t.Fatal("there is space, and the stats say that there is none")
		}
		for range 20 {
			must(t, send())
		}
		numbered(t, e, "t", next)
	}
	if e.Stats().Store.Failures == 0 {
		t.Error("no write failed: the reserve alone refused")
	}
	shut(t, e)
	e = open(t, v.data(), Options{spaceEvery: quickly})
	if n := numbered(t, e, "t", next); n != next {
		t.Errorf("%d records, %d were acknowledged and the others refused", n, next)
	}
}

// D01, D05: a process dies with an open segment and the volume is full to the last
// byte when the next one starts. What is stored can be read, nothing is taken for
// empty or closed elsewhere, and once there is space the segment is closed by itself,
// whether anybody writes to it or not.
func TestD05StartOnAFullVolume(t *testing.T) {
	for _, writes := range []bool{false, true} {
		t.Run(fmt.Sprint("writes=", writes), func(t *testing.T) {
			v := newVolume(t, 64)
			must(t, os.Mkdir(v.data(), 0o700))
			kill(t, v.data())
			v.fill(0)
			var left []string
			for i := range 10 {
				left = append(left, fmt.Sprint("left ", i))
			}
			for range 2 { // and again: the first start on it changes nothing
				e := open(t, v.data(), Options{spaceEvery: quickly})
				if o := e.Opened(); o.Unfenced != 1 || o.Recovered != 0 || len(o.Damaged) != 0 || o.Records != 10 {
					t.Fatalf("%+v", o)
				}
				want(t, e, "left", left...)
				p := newProducer(t, e, ProducerOptions{Topic: "left"})
				_, err := p.Produce(within(t), Record{Value: []byte("more")})
				is(t, err, ErrOutOfSpace)
				want(t, e, "left", left...)
				if d, err := e.Describe(within(t), "left"); err != nil || d.Records != 10 {
					t.Fatalf("%+v %v", d, err)
				}
				shut(t, e)
			}
			e := open(t, v.data(), Options{spaceEvery: quickly})
			if o := e.Opened(); o.Unfenced != 1 {
				t.Fatalf("%+v", o)
			}
			follower := newConsumer(t, e, ConsumerOptions{Topic: "left", From: FromStart()})
			got, _ := drain(t, follower)
			v.empty()
			if writes {
				p := newProducer(t, e, ProducerOptions{Topic: "left"})
				eventually(t, "the range takes records", func() bool {
					_, err := p.Produce(within(t), Record{Value: []byte("more")})
					if err != nil {
						is(t, err, ErrOutOfSpace)
					}
					return err == nil
				})
				left = append(left, "more")
			}
			eventually(t, "the segment is sealed", func() bool {
				d, err := e.Describe(within(t), "left")
				must(t, err)
				s := d.AllRanges[0].Segments[0]
				return !s.Active && s.Records == 10
			})
			want(t, e, "left", left...)
			rest, _ := drain(t, follower) // it stood in the segment while that was closed
			if n := len(got) + len(rest); n != len(left) {
				t.Errorf("the consumer that was there before saw %d records, want %d", n, len(left))
			}
			follower.Close()
			shut(t, e)
			e = open(t, v.data(), Options{spaceEvery: quickly})
			if o := e.Opened(); o.Unfenced+o.Recovered+len(o.Damaged) != 0 {
				t.Fatalf("%+v", o)
			}
			want(t, e, "left", left...)
		})
	}
}

// On a full volume a topic can be deleted whose segment could not be closed.
func TestDeleteWhatCannotBeClosed(t *testing.T) {
	v := newVolume(t, 64)
	must(t, os.Mkdir(v.data(), 0o700))
	kill(t, v.data())
	v.fill(0)
	e := open(t, v.data(), Options{spaceEvery: quickly})
	if o := e.Opened(); o.Unfenced != 1 {
		t.Fatalf("%+v", o)
	}
	d, err := e.Describe(within(t), "left")
	must(t, err)
	file := d.AllRanges[0].Segments[0].File
	must(t, e.DeleteTopic(within(t), "left"))
	eventually(t, "the file is gone", func() bool {
		_, err := os.Stat(file)
		return os.IsNotExist(err)
	})
	_, err = e.Describe(within(t), "left")
	is(t, err, ErrNoSuchTopic)
	shut(t, e)
	v.empty()
	e = open(t, v.data(), Options{spaceEvery: quickly})
	if o := e.Opened(); o.Unfenced+o.Recovered+len(o.Damaged)+len(o.SetAside) != 0 {
		t.Fatalf("%+v", o)
	}
}

// D01: the metadata finds no space. Changes that need some are refused with the same
// error, those that give some back and positions are taken, nothing that was answered
// is lost, and with space everything is taken again.
func TestD01FullMetadata(t *testing.T) {
	v := newVolume(t, 64)
	e := open(t, v.data(), Options{Vnodes: 1, spaceEvery: quickly})
	ctx := within(t)
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	produce(t, p, "k", "a", "b")
	v.fill(0)
	long := strings.Repeat("n", 240)
	var err error
	made := 0
	for ; made < 50_000 && err == nil; made++ {
		err = e.CreateTopic(ctx, fmt.Sprintf("%s-%d", long, made), TopicOptions{})
	}
	made--
	is(t, err, ErrOutOfSpace, "metadata", "free space")
	is(t, e.SetPolicy(ctx, "p", Policy{}), ErrOutOfSpace)
	want(t, e, "t", "a", "b")
	must(t, e.DeleteTopic(ctx, fmt.Sprintf("%s-%d", long, 0)))
	shut(t, e)

	e = open(t, v.data(), Options{Vnodes: 1, spaceEvery: quickly}) // on the full volume, with as much metadata as fits
	list, err := e.Topics(ctx)
	if err != nil || len(list) != made { // one was deleted, one is t
		t.Fatalf("%d topics, want %d: %v", len(list), made, err)
	}
	want(t, e, "t", "a", "b")
	must(t, e.DeleteTopic(ctx, fmt.Sprintf("%s-%d", long, 1)))
	v.empty()
	eventually(t, "topics can be made", func() bool {
		err := e.CreateTopic(ctx, "late", TopicOptions{})
		if err != nil {
			is(t, err, ErrOutOfSpace)
		}
		return err == nil
	})
	p = newProducer(t, e, ProducerOptions{Topic: "t"})
	eventually(t, "records are taken", func() bool {
		_, err := p.Produce(ctx, Record{Value: []byte("c")})
		if err != nil {
			is(t, err, ErrOutOfSpace)
		}
		return err == nil
	})
	want(t, e, "t", "a", "b", "c")
}

// A first start without space for the metadata says so, and leaves nothing that the
// next one minds.
func TestD01FirstStart(t *testing.T) {
	v := newVolume(t, 32)
	for _, left := range []int64{0, 100 << 10, 1500 << 10, 3 << 20} {
		v.fill(left)
		var err error
		soon(t, "a first start on a full disk", func() {
			var e *Engine
			if e, err = Open(v.data(), small(Options{spaceEvery: quickly})); err == nil {
				err = e.Close()
			}
		})
		is(t, err, ErrOutOfSpace, "free space")
		v.empty()
		e := open(t, v.data(), Options{spaceEvery: quickly})
		newTopic(t, e, "t")
		shut(t, e)
		must(t, os.RemoveAll(v.data()))
	}
}

// A producer with an ID of its own stops at the first record that fails, so that a
// rerun under the ID stores everything once; one without goes on when there is space.
func TestD01RerunBehindARefusal(t *testing.T) {
	v := newVolume(t, 64)
	e := open(t, v.data(), Options{ReserveBytes: 8 << 20, spaceEvery: quickly})
	ctx := within(t)
	values := []string{"000000", "000001", "000002", "000003"}
	for _, id := range []uint64{0, 7} {
		topic := fmt.Sprint("t", id)
		newTopic(t, e, topic)
		p := newProducer(t, e, ProducerOptions{Topic: topic, ID: id})
		send := func(p *Producer, value string) error {
			_, err := p.Produce(ctx, Record{Key: []byte("k"), Value: []byte(value)})
			return err
		}
		must(t, send(p, values[0]))
		v.fill(0)
		eventually(t, "the engine knows that there is no space", func() bool { return e.Stats().Store.OutOfSpace })
		is(t, send(p, values[1]), ErrOutOfSpace)
		v.empty()
		eventually(t, "there is space again", func() bool { return !e.Stats().Store.OutOfSpace })
		err := send(p, values[2])
		if id == 0 {
			must(t, err)
			must(t, p.Close(ctx))
			want(t, e, topic, values[0], values[2])
			continue
		}
		is(t, err, ErrHalted, "ID 7")
		is(t, err, ErrOutOfSpace)
		b, err := p.NewBatch(ctx, 0)
		must(t, err)
		must(t, b.Add(Record{Key: []byte("k"), Value: []byte("batch")}))
		is(t, b.Send(ctx, nil), ErrHalted)
		b.Discard()
		must(t, p.Close(ctx))
		again := newProducer(t, e, ProducerOptions{Topic: topic, ID: id})
		for _, value := range values {
			must(t, send(again, value))
		}
		must(t, again.Close(ctx))
		want(t, e, topic, values...)
	}
}

// D01: retention goes on where nothing can be written, and what it gives back is used
// by appends.
func TestD01RetentionOnAFullVolume(t *testing.T) {
	v := newVolume(t, 96)
	e := open(t, v.data(), Options{ReserveBytes: 4 << 20, SegmentBytes: 2 << 20, PoolBytes: 8 << 20, spaceEvery: quickly})
	ctx := within(t)
	newTopic(t, e, "t")
	p := newProducer(t, e, ProducerOptions{Topic: "t"})
	value := strings.Repeat("x", 100_000)
	for range 200 {
		produce(t, p, "k", value)
	}
	must(t, e.SetPolicy(ctx, "small", Policy{MaxBytes: cp.Limit(4 << 20)}))
	must(t, e.BindPolicy(ctx, "t", "small"))
	eventually(t, "there is no space", func() bool {
		v.fill(0) // again: closed segments and the pool give some back
		_, err := p.Produce(ctx, Record{Key: []byte("k"), Value: []byte(value)})
		return errors.Is(err, ErrOutOfSpace)
	})
	r, err := e.Retain(ctx)
	if err != nil || r.Bytes < 8<<20 || r.Failed > 0 {
		t.Fatalf("%+v %v", r, err)
	}
	eventually(t, "appends are taken again", func() bool { return !e.Stats().Store.OutOfSpace })
	produce(t, p, "k", "taken")
	got := readAll(t, e, "t", FromStart())
	if n := len(got); got[n-1] != "taken" {
		t.Fatalf("%d records, the last is %.20q", n, got[n-1])
	}
}

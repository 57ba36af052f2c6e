package server

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// attachAs is attach of another user of this host. The kernel tells the server who made a
// connection, which is the thread: that one becomes the other user and is given up.
func (w *sharedWorld) attachAs(uid int, bytes uint64) *guest {
	w.t.Helper()
	for dir := w.path; dir != "/"; dir = filepath.Dir(dir) {
		if st, err := os.Stat(dir); err == nil {
			_ = os.Chmod(dir, st.Mode()|0o77) // where it fails the other user is told so
		}
	}
	var nc net.Conn
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock it: the thread ends with this
		var err error
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			err = e
		} else {
			nc, err = net.Dial("unix", w.path)
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		w.t.Fatal(err)
	}
	c := &client{t: w.t, nc: &shm.Receiver{UnixConn: nc.(*net.UnixConn)}}
	c.hello()
	return &guest{c, c.attach(bytes)}
}

// tooMany is a client that gets no memory, for lack of what the setting gives.
func (w *sharedWorld) tooMany(setting string) {
	w.t.Helper()
	c := w.dialShared()
	defer c.nc.Close()
	c.hello()
	a := c.do(wire.KeyAttach, &wire.Attach{ArenaBytes: shm.MinArena})
	if a.code() != wire.CodeOverloaded || !strings.HasSuffix(a.err.Detail, "raise "+setting) || !strings.Contains(a.err.Detail, fmt.Sprintf("user %d", os.Geteuid())) {
		w.t.Errorf("one too many: %v, want %s to be named", a.err, setting)
	}
}

// Where several users may share memory none gets more than its part, of clients and of
// bytes; what is left is the others'. Without a word on it that part is half.
func TestI12OneUserCannotTakeAll(t *testing.T) {
	const other = 54321
	me := uint32(os.Geteuid())
	one := int64(shm.Geometry{ArenaBytes: shm.MinArena, Slots: sharedSlots}.Size())
	for _, tt := range []struct {
		name    string
		Sharing // of four clients
		most    int
		setting string
		reason  string
	}{
		{"half of the clients", Sharing{Clients: 4}, 2, "shm-user-clients", "user_clients"},
		{"half of the memory", Sharing{TotalBytes: 4*one + 1}, 2, "shm-user-memory", "user_memory"},
		{"so many clients", Sharing{Clients: 4, UserClients: 3}, 3, "shm-user-clients", "user_clients"},
		{"so much memory", Sharing{TotalBytes: 4 * one, UserBytes: 3 * one}, 3, "shm-user-memory", "user_memory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.UIDs = []uint32{me, other}
			w := newSharedWorld(t, Options{Sharing: tt.Sharing})
			var mine []*guest
			for range tt.most {
				g := w.attach(shm.MinArena)
				defer g.leave()
				mine = append(mine, g)
			}
			w.tooMany(tt.setting)
			if os.Geteuid() == 0 {
				for i := range 4 - tt.most {
					g := w.attachAs(other, shm.MinArena)
					defer g.leave()
					g.submit(g.producer("theirs"), 1, 1000)
					if c := g.stored(1); c.First != uint64(i) {
						t.Errorf("%+v", c)
					}
				}
			}
			users := w.server.Stats().Shared.Users
			u := users[0]
			if u.UID != me || u.Clients != int64(tt.most) || u.Bytes != one*int64(tt.most) || u.Attached != int64(tt.most) || !reflect.DeepEqual(u.TurnedAway, map[string]int64{tt.reason: 1}) {
				t.Errorf("%+v", u)
			}
			if os.Geteuid() == 0 && (len(users) != 2 || users[1].UID != other || users[1].Clients != int64(4-tt.most) || users[1].Stored != int64(4-tt.most)) {
				t.Errorf("%+v", users)
			}
			mine[0].leave()
			for w.server.Stats().Shared.Users[0].Clients == int64(tt.most) {
				time.Sleep(time.Millisecond)
			}
			w.attach(shm.MinArena).leave()
		})
	}
}

// One user alone may have everything; and a client that does not say how much it wants
// never wants more than it may have.
func TestShareOfOneUser(t *testing.T) {
	me := uint32(os.Geteuid())
	for name, tt := range map[string]struct {
		give             Sharing
		clients          int
		bytes, arenaLeft int64
	}{
		"alone":            {Sharing{}, 64, 1 << 30, 64 << 20},
		"alone, trusted":   {Sharing{UIDs: []uint32{me}, Trusted: []uint32{me}}, 64, 1 << 30, 64 << 20},
		"with another":     {Sharing{UIDs: []uint32{me}, Trusted: []uint32{me + 1}}, 32, 512 << 20, 64 << 20},
		"of a group":       {Sharing{GIDs: []uint32{me}, Clients: 5}, 3, 512 << 20, 64 << 20},
		"little for all":   {Sharing{TotalBytes: 64 << 20}, 64, 64 << 20, 64<<20 - int64(shm.Geometry{Slots: sharedSlots}.Size())},
		"little for a few": {Sharing{UIDs: []uint32{1, 2}, TotalBytes: 64 << 20}, 32, 32 << 20, 32<<20 - int64(shm.Geometry{Slots: sharedSlots}.Size())},
	} {
		o, err := tt.give.withDefaults()
		if err != nil || o.UserClients != tt.clients || o.UserBytes != tt.bytes || o.ArenaBytes != tt.arenaLeft {
			t.Errorf("%s: %d clients, %d bytes, an arena of %d, %v", name, o.UserClients, o.UserBytes, o.ArenaBytes, err)
		}
		h := newSharers(&o)
		if _, err := h.take(me, int64(shm.Geometry{ArenaBytes: arenaFor(0, o.ArenaBytes), Slots: sharedSlots}.Size())); err != nil {
			t.Errorf("%s: the first client is refused: %v", name, err)
		}
	}
	if _, err := (Sharing{UserClients: -1}).withDefaults(); err == nil {
		t.Error("less than no clients")
	}
}

// However many users come, as many are counted as there is room for, and the others
// together; the share of each is its own all the same.
func TestSharersAreBounded(t *testing.T) {
	o, err := Sharing{GIDs: []uint32{1}, Clients: 2000, UserClients: 2}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	s := newSharers(&o)
	const users = mostSharers + 50
	for round := range 3 {
		for uid := range uint32(users) {
			count, full := s.take(uid, 10)
			if (full == nil) != (round < 2) {
				t.Fatalf("client %d of user %d: %v", round, uid, full)
			}
			if full == nil {
				tallies{new(tally), count}.came(100)
			}
		}
	}
	now, list := s.stats()
	last := list[len(list)-1]
	if now != (holding{2 * users, 20 * users}) || len(list) != mostSharers+1 || !last.Others || list[0].Others {
		t.Fatalf("%+v of %d users, the last %+v", now, len(list), last)
	}
	if last.Clients != 100 || last.Bytes != 1000 || last.Attached != 100 || last.Frames != 100 || last.TurnedAway["user_clients"] != 50 {
		t.Errorf("the others: %+v", last)
	}
	if u := list[7]; u.UID != 7 || u.Clients != 2 || u.Bytes != 20 || u.Frames != 2 || u.FrameBytes != 200 || u.TurnedAway["user_clients"] != 1 {
		t.Errorf("%+v", u)
	}
	for range 2 {
		for uid := range uint32(users) {
			s.give(uid, 10)
		}
	}
	if now, _ := s.stats(); now != (holding{}) || len(s.held) != 0 {
		t.Errorf("all have left, and %+v with %d entries", now, len(s.held))
	}
}

// What each client does is told of it while it is there, and of its user for good.
func TestSharedUseIsCounted(t *testing.T) {
	me := uint32(os.Geteuid())
	w := newSharedWorld(t, Options{Sharing: Sharing{Trusted: []uint32{me}}})
	if list := w.server.SharedClients(); list == nil || len(list) != 0 {
		t.Errorf("nobody is there: %+v", list)
	}
	a, b := w.attach(1<<20), w.attach(2<<20)
	defer a.leave()
	p, q := a.producer("a"), b.producer("b")
	a.submit(p, 1, 1000)
	a.stored(1)
	a.submit(p, 2, lendBytes)
	a.stored(2)
	want[*wire.Done](b.client, wire.KeyCloseProducer, &wire.CloseProducer{Producer: q})
	b.submit(q, 3, 2000)
	if x := b.next(); x.code() != wire.CodeNoSuchHandle {
		t.Errorf("%+v", x.err)
	}
	b.Answered()
	q = b.producer("b")
	disk := make(chan struct{})
	w.engine.set(func() { w.engine.disk = disk })
	b.submit(q, 4, 3000)
	for w.server.Stats().Shared.Submissions < 4 || w.server.Stats().Shared.Copies < 2 {
		time.Sleep(time.Millisecond)
	}
	list := w.server.SharedClients()
	if len(list) != 2 {
		t.Fatalf("%+v", list)
	}
	for i, c := range list {
		if c.UID != me || c.PID != int32(os.Getpid()) || c.Bytes < 1<<20 || c.Since.IsZero() || !c.Trusted || i > 0 && c.Connection <= list[i-1].Connection {
			t.Errorf("%+v", c)
		}
		c.Waited = 0
		list[i].SharedUse = c.SharedUse
	}
	if got, want := list[0].SharedUse, (SharedUse{Frames: 2, FrameBytes: 1000 + lendBytes, Stored: 2, Copies: 1, CopiedBytes: 1000, Lent: 1, LentBytes: lendBytes, Refused: map[string]int64{}}); !reflect.DeepEqual(got, want) || list[0].Unanswered != 0 {
		t.Errorf("the first did %+v, want %+v", list[0], want)
	}
	if got, want := list[1].SharedUse, (SharedUse{Frames: 2, FrameBytes: 5000, Copies: 1, CopiedBytes: 3000, Refused: map[string]int64{"no_such_handle": 1}}); !reflect.DeepEqual(got, want) || list[1].Unanswered != 1 {
		t.Errorf("the second did %+v, want %+v", list[1], want)
	}
	close(disk)
	b.stored(4)
	b.leave()
	for len(w.server.SharedClients()) > 1 {
		time.Sleep(time.Millisecond)
	}
	u := w.server.Stats().Shared.Users[0]
	u.Waited = 0
	if want := (SharedUse{Frames: 4, FrameBytes: 6000 + lendBytes, Stored: 3, Copies: 2, CopiedBytes: 4000, Lent: 1, LentBytes: lendBytes, Refused: map[string]int64{"no_such_handle": 1}}); !reflect.DeepEqual(u.SharedUse, want) || u.Clients != 1 || u.Attached != 2 {
		t.Errorf("the user did %+v, want %+v", u, want)
	}
}

// Memory that there is none of in the engine is waited for, and that is told.
func TestWaitingForMemoryIsTold(t *testing.T) {
	w := newSharedWorld(t, Options{})
	g := w.attach(1 << 20)
	defer g.leave()
	p := g.producer("a")
	memory := make(chan struct{})
	w.engine.set(func() { w.engine.memory = memory })
	g.submit(p, 1, 1000)
	for w.server.Stats().Shared.Submissions == 0 {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Millisecond)
	close(memory)
	g.stored(1)
	if c := w.server.SharedClients()[0]; c.Waited <= 0 {
		t.Errorf("%+v", c)
	}
}

// Clients that come, break the rules and come again, as fast as they can, do not fill the
// log: of each kind of line one is told in a second.
func TestI12ComingAndGoingDoesNotFillTheLog(t *testing.T) {
	var log locked
	w := newSharedWorld(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	start := time.Now()
	const times = 150
	for range times {
		g := w.attach(shm.MinArena)
		b, _ := g.Arena().Alloc(1)
		g.Submit(1, 99, b) // of a producer that there is not
		g.Ring()
		g.next()
		g.write([]byte("no frame at all, but as long as the head of one"))
		g.closed(wire.CodeFrameTooLarge)
		g.leave()
	}
	for w.server.Stats().CutOff < times {
		time.Sleep(time.Millisecond)
	}
	told := strings.Count(log.String(), "\n")
	if most := 1 + int(time.Since(start)/auditEvery); strings.Count(log.String(), "connection cut off") == 0 || told > most {
		t.Errorf("%d clients fill %d lines, at most %d:\n%s", times, told, most, log.String())
	}
	if s := w.server.Stats().Shared; s.Attached != times || s.Users[0].Refused["no_such_handle"] != times {
		t.Errorf("%+v", s)
	}
}

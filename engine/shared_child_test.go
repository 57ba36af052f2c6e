package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
	"github.com/ringfence/ringfence/segfile/record"
)

// bare is a client of shared memory that does one thing at a time, the wrong ones too.
// all is the whole region, in a mapping of its own.
type bare struct {
	nc   *shm.Receiver
	file int // the memory's, for those who would cut it
	enc  wire.Encoder
	last uint32
	g    *shm.Guest
	geo  shm.Geometry
	all  []byte
	pos  int // slots that were used
}

func dialSocket(path string) (*bare, error) {
	nc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	b := &bare{nc: &shm.Receiver{UnixConn: nc}}
	_, err = b.call(wire.KeyHello, &wire.Hello{Magic: wire.Magic, MinVersion: 1, MaxVersion: 1})
	return b, err
}

func dialBare(path string) (*bare, error) { return dialBareFor(path, 1<<20) }

func dialBareFor(path string, arena uint64) (*bare, error) {
	b, err := dialSocket(path)
	if err != nil {
		return nil, err
	}
	m, err := b.call(wire.KeyAttach, &wire.Attach{ArenaBytes: arena})
	if err != nil {
		return nil, err
	}
	r, f := m.(*wire.AttachReply), b.nc.File()
	b.geo = shm.Geometry{ArenaBytes: int(r.ArenaBytes), Slots: int(r.Slots)}
	if b.file, err = syscall.Dup(int(f.Fd())); err != nil {
		return nil, err
	}
	if b.all, err = syscall.Mmap(int(f.Fd()), 0, b.geo.Size(), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		return nil, err
	}
	b.g, err = shm.Attach(f, b.geo, r.Incarnation)
	return b, err
}

// call asks something and waits for the answer to it.
func (b *bare) call(key wire.Key, m wire.Message) (any, error) {
	b.last++
	_, _ = b.nc.Write(b.enc.Frame(key, 0, b.last, m, 0)) // who is turned away is told why, and then cannot write
	for {
		h, m, err := b.read()
		if h.ID == b.last || err != nil && h.ID == 0 {
			return m, err
		}
	}
}

func (b *bare) read() (h wire.Head, m any, err error) {
	var head [wire.HeadSize]byte
	if _, err = io.ReadFull(b.nc, head[:]); err != nil {
		return h, nil, err
	}
	if h, err = wire.ParseHead(head[:], wire.MaxFrame); err != nil {
		return h, nil, err
	}
	body := make([]byte, h.Length)
	if _, err = io.ReadFull(b.nc, body); err != nil {
		return h, nil, err
	}
	m, err = wire.Reply(h.Key, h.Flags, body[:h.Message])
	return h, m, err
}

func (b *bare) producer(topic string, id uint64) (uint32, error) {
	m, err := b.call(wire.KeyOpenProducer, &wire.OpenProducer{Topic: topic, Id: id})
	if err != nil {
		return 0, err
	}
	return m.(*wire.OpenProducerReply).Producer, nil
}

// word is one of the region's, as both sides use it.
func (b *bare) word(at int) *uint64 { return (*uint64)(unsafe.Pointer(&b.all[at])) }

// slot is where the next submission goes.
func (b *bare) slot() int { return b.geo.ArenaBytes + 4096 + b.pos%b.geo.Slots*64 }

// frameWith is a frame of one record.
func frameWith(id, seq uint64, value []byte) []byte {
	var r record.Builder
	r.Reset(make([]byte, len(value)+4096), id)
	if err := r.Add(&record.Record{Key: []byte("k"), Value: value, Timestamp: 1}, seq); err != nil {
		panic(err)
	}
	frame, err := r.Finish(0)
	if err != nil {
		panic(err)
	}
	return frame
}

// Steps of sending a frame, in order.
var steps = []string{"attached", "reserved", "half filled", "filled", "half a slot", "slot", "published", "rung", "waiting", "answered"}

const (
	stepEnv   = "RINGFENCE_SHM_STEP"   // after which the child does not go on
	signalEnv = "RINGFENCE_SHM_SIGNAL" // that it sends itself there
	idEnv     = "RINGFENCE_SHM_ID"
	countEnv  = "RINGFENCE_SHM_COUNT"
	tcpEnv    = "RINGFENCE_SHM_TCP"
	trustEnv  = "RINGFENCE_SHM_TRUST" // 1: large frames are not copied
)

func number(env string) int {
	n, _ := strconv.Atoi(os.Getenv(env))
	return n
}

func report(err error) int {
	if err != nil {
		fmt.Println("fatal", err)
		return 1
	}
	return 0
}

func init() {
	parts["shm step"] = func(path string) int { return report(playStep(path)) }
	parts["shm writer"] = func(addr string) int { return report(playWriter(addr)) }
	parts["shm reader"] = func(path string) int { return report(playReader(path)) }
	parts["shm hostile"] = func(path string) int { return report(playHostile(path)) }
	parts["shm narrow"] = func(path string) int { return report(playNarrow(path)) }
	parts["shm serve"] = func(dir string) int { return report(playSharer(dir)) }
}

// playStep stores one record, and then dies, or stops, at a step of storing another.
func playStep(path string) error {
	b, err := dialBare(path)
	if err != nil {
		return err
	}
	at := func(step string) {
		if os.Getenv(stepEnv) != step {
			return
		}
		fmt.Println("reached", step)
		syscall.Kill(os.Getpid(), syscall.Signal(number(signalEnv)))
		time.Sleep(time.Hour) // with select {} the runtime would take a client that was let go on for deadlocked
	}
	id := uint64(number(idEnv))
	p, err := b.producer("t", id)
	if err != nil {
		return err
	}
	frame := frameWith(id, 1, fmt.Appendf(nil, "first of %d", id))
	mem, _ := b.g.Arena().Alloc(len(frame))
	copy(mem, frame)
	b.g.Submit(1<<31, p, mem)
	b.g.Ring()
	if _, err := b.g.Next(); err != nil {
		return err
	}
	b.pos = 1
	at("attached")
	frame = frameWith(id, 2, fmt.Appendf(make([]byte, 0, 10_000), "second of %d%08000d", id, 0))
	mem, _ = b.g.Arena().Alloc(len(frame))
	off, _ := b.g.Offset(mem)
	at("reserved")
	copy(mem[:len(frame)/2], frame)
	at("half filled")
	copy(mem, frame)
	at("filled")
	slot := b.slot()
	atomic.StoreUint64(b.word(slot+8), 1<<31|uint64(p)<<32)
	atomic.StoreUint64(b.word(slot+16), off)
	at("half a slot")
	atomic.StoreUint64(b.word(slot+24), uint64(len(frame)))
	at("slot")
	atomic.StoreUint64(b.word(slot), uint64(b.pos+1))
	at("published")
	b.g.Ring()
	at("rung")
	answered := make(chan error, 1)
	go func() {
		_, err := b.g.Next()
		answered <- err
	}()
	at("waiting")
	if err := <-answered; err != nil {
		return err
	}
	at("answered")
	return errors.New("it went on behind all steps")
}

// playReader reads the topic again and again and says how many records there are; with a
// count so often, and with no more descriptors than it begins with.
func playReader(path string) error {
	ctx := context.Background()
	c, err := client.DialShm(ctx, path, client.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience})
	if err != nil {
		return err
	}
	count := number(countEnv)
	if count > 0 {
		var free [64]int
		n := 0
		for ; n < len(free); n++ { // all numbers below the limit are to be taken
			if free[n], err = syscall.Dup(0); err != nil {
				return err
			}
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(free[n-1] + 1), Max: uint64(free[n-1] + 1)}); err != nil {
			return err
		}
	}
	for n := 0; count == 0 || n < count; n++ {
		r, err := c.NewConsumer(ConsumerOptions{Topic: "t", From: FromStart()})
		if err != nil {
			return err
		}
		records := 0
		for {
			page, err := r.Fetch(1000)
			if err != nil {
				return err
			}
			if records += len(page.Records); page.CaughtUp {
				break
			}
		}
		if err := r.Close(); err != nil {
			return err
		}
		fmt.Println("read", records)
	}
	return nil
}

// playSharer serves a directory until it is killed: over TCP, and through shared memory.
func playSharer(dir string) error {
	e, err := Open(dir, small(Options{}))
	if err != nil {
		return err
	}
	if err := e.CreateTopic(context.Background(), "t", TopicOptions{}); err != nil && !errors.Is(err, ErrTopicExists) {
		return err
	}
	o := server.Options{}
	if number(trustEnv) == 1 {
		o = trusting()
	}
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := server.New(e.Backend(), o)
	if err != nil {
		return err
	}
	l, err := shm.Listen(dir+".sock", 0o600)
	if err != nil {
		return err
	}
	tcp, err := net.Listen("tcp", os.Getenv(tcpEnv))
	if err != nil {
		return err
	}
	go s.Serve(tcp)
	fmt.Println("serving")
	return s.ServeShared(l)
}

// playNarrow serves in an address space that has room for little more than it has, until
// its input ends, and says how many clients got no memory for that.
func playNarrow(path string) error {
	dir, err := os.MkdirTemp("", "narrow")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	e, err := Open(dir, small(Options{}))
	if err != nil {
		return err
	}
	if err := e.CreateTopic(context.Background(), "t", TopicOptions{}); err != nil {
		return err
	}
	o := server.Options{Logger: slog.New(slog.DiscardHandler), Sharing: server.Sharing{ArenaBytes: 512 << 20}}
	s, err := server.New(e.Backend(), o)
	if err != nil {
		return err
	}
	l, err := shm.Listen(path, 0o600)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- s.ServeShared(l) }()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var pages uint64
	if _, err := fmt.Sscan(string(statm), &pages); err != nil {
		return err
	}
	limit := syscall.Rlimit{Cur: pages*uint64(os.Getpagesize()) + 400<<20, Max: pages*uint64(os.Getpagesize()) + 400<<20}
	if err := syscall.Setrlimit(syscall.RLIMIT_AS, &limit); err != nil {
		return err
	}
	fmt.Println("serving")
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Println("refused", s.Stats().Shared.Users[0].TurnedAway["host"])
	return errors.Join(s.Shutdown(context.Background()), <-served, e.Close())
}

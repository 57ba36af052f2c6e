package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
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

func dialBare(path string) (*bare, error) {
	b, err := dialSocket(path)
	if err != nil {
		return nil, err
	}
	m, err := b.call(wire.KeyAttach, &wire.Attach{ArenaBytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	r, f := m.(*wire.AttachReply), b.nc.File()
	b.geo = shm.Geometry{ArenaBytes: int(r.ArenaBytes), Slots: int(r.Slots)}
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

// playWriter sends records 0, 1, 2 and so on under an id, and says which are stored.
func playWriter(addr string) error {
	ctx := context.Background()
	o := client.Options{Logger: slog.New(slog.DiscardHandler), RequestTimeout: patience, MemoryBytes: 2 << 20}
	dial := client.Dial
	if rest, ok := strings.CutPrefix(addr, "shm:"); ok {
		addr, dial = rest, client.DialShm
	}
	var c *client.Client
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if c, err = dial(ctx, addr, o); err == nil || time.Now().After(end) {
			break // or the server is not there at the moment
		}
	}
	if err != nil {
		return err
	}
	id := number(idEnv)
	p, err := c.NewProducer(ProducerOptions{Topic: "t", ID: uint64(id), BatchBytes: 16 << 10})
	if err != nil {
		return err
	}
	for i := range number(countEnv) {
		r := Record{Key: text("%d-%d", id, i%5), Value: text("%d", i)}
		err := p.Append(ctx, r, func(_ Placement, err error) {
			if err != nil {
				fmt.Println("fatal", err)
				os.Exit(1)
			}
			fmt.Println("ack", i)
		})
		if err != nil {
			return err
		}
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	fmt.Println("done")
	return c.Close()
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

// playHostile does to the server what a client must not, for ever: frames that change
// while they are looked at, places outside of the memory, counters that are none.
func playHostile(path string) error {
	rng := rand.New(rand.NewPCG(uint64(number(idEnv)), 3))
	odd := []uint64{0, 1, 63, 4095, 4096, 1 << 20, 1<<20 - 4096, 1 << 31, 1 << 32, 1 << 63, ^uint64(0), ^uint64(4095)}
	for life := 0; ; life++ {
		b, err := dialBare(path)
		if err != nil {
			continue // the server is busy with the one before
		}
		id := uint64(1_000_000 + life)
		m, err := b.call(wire.KeyOpenProducer, &wire.OpenProducer{Topic: "hostile", Id: id, Unnumbered: true})
		if err != nil {
			continue
		}
		p := m.(*wire.OpenProducerReply).Producer
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			for { // failures come over the socket
				h, _, err := b.read()
				if h.ID == 0 && err != nil {
					return
				}
				b.g.Answered()
			}
		}()
		go func() {
			<-gone
			b.g.Stop()
		}()
		go func() {
			for {
				if _, err := b.g.Next(); errors.Is(err, shm.ErrStopped) {
					return
				}
			}
		}()
		frame := frameWith(id, 0, make([]byte, 40_000)) // as long as those that are sent
		mem, _ := b.g.Arena().Alloc(len(frame))
		for dead := false; !dead; {
			select {
			case <-gone:
				dead = true
				continue
			default:
			}
			copy(mem, frameWith(id, 0, fmt.Appendf(make([]byte, 0, 40_000), "hostile %09d%039983d", b.pos, 0)))
			switch slot := b.slot(); rng.IntN(30) {
			case 0: // a place that is none
				atomic.StoreUint64(b.word(slot+16), odd[rng.IntN(len(odd))])
				atomic.StoreUint64(b.word(slot+24), odd[rng.IntN(len(odd))])
				atomic.StoreUint64(b.word(slot), uint64(b.pos+1))
				b.g.Ring()
			case 1: // anything, anywhere but in the arena
				at := b.geo.ArenaBytes + rng.IntN((len(b.all)-b.geo.ArenaBytes)/8)*8
				atomic.StoreUint64(b.word(at), odd[rng.IntN(len(odd))]+uint64(rng.IntN(3)))
			default:
				if b.g.Submit(1<<31, p, mem) {
					b.pos++
				}
				b.g.Ring()
				for range rng.IntN(2) * rng.IntN(200) { // while the server copies it
					binary.LittleEndian.PutUint64(mem[rng.IntN(len(frame)-8):], rng.Uint64())
				}
			}
		}
		b.nc.Close()
		_ = syscall.Munmap(b.all)
	}
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
	s, err := server.New(e.Backend(), server.Options{Logger: slog.New(slog.DiscardHandler)})
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

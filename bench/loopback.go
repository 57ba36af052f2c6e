package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// The floors of what goes over a network: the same bytes over the same kind of socket
// with nothing behind it.

// loopbackRate sends frames of size bytes over conns connections, depth of them not
// answered at a time, to a peer that reads each and answers with 16 bytes; MB/s.
func loopbackRate(ctx context.Context, network string, conns, depth, size int, seconds float64) (float64, error) {
	l, done, err := listenLoopback(network)
	if err != nil {
		return 0, err
	}
	defer done()
	go accept(l, answerEach(size, 16))
	sent, took, err := sendFrames(ctx, l.Addr(), conns, depth, size, seconds)
	return float64(sent) / 1e6 / took.Seconds(), err
}

// sendFrames is the sender's side of that: the bytes sent, and in which time.
func sendFrames(ctx context.Context, to net.Addr, conns, depth, size int, seconds float64) (bytes int64, took time.Duration, err error) {
	var sent counter
	start := time.Now()
	end := start.Add(time.Duration(seconds * float64(time.Second)))
	err = eachConn(to, conns, func(c net.Conn) error {
		b := make([]byte, size)
		tokens := make(chan struct{}, depth)
		failed := make(chan error, 1)
		go func() {
			ack := make([]byte, 16)
			for range tokens {
				if _, err := io.ReadFull(c, ack); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
		for time.Now().Before(end) && ctx.Err() == nil {
			if _, err := c.Write(b); err != nil {
				return err
			}
			select {
			case tokens <- struct{}{}:
			case err := <-failed:
				return err
			}
			sent.Add(int64(size))
		}
		close(tokens)
		return <-failed
	})
	return sent.Load(), time.Since(start), errors.Join(err, ctx.Err())
}

// loopbackTrip times round trips of a request of size bytes and an answer of 64, one at
// a time on each of conns connections, and says how many there were in a second.
func loopbackTrip(ctx context.Context, network string, conns, size int, seconds float64) (Latency, float64, error) {
	l, done, err := listenLoopback(network)
	if err != nil {
		return Latency{}, 0, err
	}
	defer done()
	go accept(l, answerEach(max(size, 64), 64))
	rec := NewRecorder()
	var begin sync.Once
	var start, end time.Time
	err = eachConn(l.Addr(), conns, func(c net.Conn) error {
		begin.Do(func() { // connecting takes its time
			start = time.Now()
			end = start.Add(time.Duration(seconds * float64(time.Second)))
		})
		b := make([]byte, max(size, 64))
		for time.Now().Before(end) && ctx.Err() == nil {
			from := time.Now()
			if _, err := c.Write(b); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, b[:64]); err != nil {
				return err
			}
			rec.Record(time.Since(from))
		}
		return nil
	})
	lat := rec.Latency()
	return lat, float64(lat.Count) / time.Since(start).Seconds(), errors.Join(err, ctx.Err())
}

// sendfileRate sends a file again and again with sendfile(2), in pieces of size bytes
// that the peer asks for; MB/s.
func sendfileRate(ctx context.Context, file string, size int64, seconds float64) (float64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	pieces := st.Size() / size
	if pieces == 0 {
		return 0, fmt.Errorf("bench: %s is shorter than %d bytes", file, size)
	}
	l, done, err := listenLoopback("tcp")
	if err != nil {
		return 0, err
	}
	defer done()
	go accept(l, func(c net.Conn) {
		ask := make([]byte, 8)
		for {
			if _, err := io.ReadFull(c, ask); err != nil {
				return
			}
			if _, err := f.Seek(int64(binary.LittleEndian.Uint64(ask)), io.SeekStart); err != nil {
				return
			}
			if _, err := io.CopyN(c, f, size); err != nil { // sendfile, by net.TCPConn.ReadFrom
				return
			}
		}
	})
	var got int64
	start := time.Now()
	end := start.Add(time.Duration(seconds * float64(time.Second)))
	err = eachConn(l.Addr(), 1, func(c net.Conn) error {
		b, ask := make([]byte, size), make([]byte, 8)
		for i := int64(0); time.Now().Before(end) && ctx.Err() == nil; i++ {
			binary.LittleEndian.PutUint64(ask, uint64(i%pieces*size))
			if _, err := c.Write(ask); err != nil {
				return err
			}
			if _, err := io.ReadFull(c, b); err != nil {
				return err
			}
			got += size
		}
		return nil
	})
	return float64(got) / 1e6 / time.Since(start).Seconds(), errors.Join(err, ctx.Err())
}

func listenLoopback(network string) (l net.Listener, done func(), err error) {
	addr := "127.0.0.1:0"
	dir := ""
	if network == OverUnix {
		if dir, err = os.MkdirTemp("", "loopback-"); err != nil {
			return nil, nil, fmt.Errorf("bench: %w", err)
		}
		addr = dir + "/s"
	}
	if l, err = net.Listen(network, addr); err != nil {
		return nil, nil, fmt.Errorf("bench: %w", err)
	}
	return l, func() {
		l.Close()
		if dir != "" {
			removeAll(dir)
		}
	}, nil
}

// accept serves each connection until the other side closes it.
func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

// eachConn runs work on n connections side by side.
func eachConn(to net.Addr, n int, work func(net.Conn) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c, err := net.Dial(to.Network(), to.String())
			if err == nil {
				err = errors.Join(work(c), c.Close())
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

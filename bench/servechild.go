package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/shm"
)

// What a server costs by itself is measured in a process of its own, which has the server
// and nothing else. It says where it listens, and for each line it is sent how much
// processor time it has used, until its input ends.

// Service is what such a process serves: a server of the engine in Dir; without one a
// server that stores nothing; and with Sink nothing but a peer, which is the floor.
type Service struct {
	Dir string
	// Over says how it is reached: OverTCP, OverUnix, OverShm or OverTrusted.
	Over string
	// Sink is how many bytes a frame has that the peer takes and answers with 16. Through
	// shared memory it takes frames of any size, copies and answers them.
	Sink int
}

// Serve is that process.
func Serve(ctx context.Context, v Service, o engine.Options, in io.Reader, out io.Writer) (err error) {
	l, err := v.listen()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	shared := v.Over == OverShm || v.Over == OverTrusted
	switch {
	case v.Sink > 0 && shared:
		defer l.Close()
		go accept(l, rawRing)
	case v.Sink > 0:
		defer l.Close()
		go accept(l, answerEach(v.Sink, 16))
	default:
		var store server.Engine = nullStore{}
		if v.Dir != "" {
			e, err := engine.Open(v.Dir, o)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, e.Close()) }()
			store = e.Backend()
		}
		so := server.Options{Logger: slog.New(slog.DiscardHandler)}
		if v.Over == OverTrusted {
			so.Sharing.Trusted = []uint32{uint32(os.Geteuid())}
		}
		s, err := server.New(store, so)
		if err != nil {
			return err
		}
		served := make(chan error, 1)
		go func() {
			if u, ok := l.(*net.UnixListener); ok && shared {
				served <- s.ServeShared(u)
			} else {
				served <- s.Serve(l)
			}
		}()
		defer func() {
			err = errors.Join(err, s.Shutdown(context.Background()))
			if e := <-served; !errors.Is(e, server.ErrShutdown) {
				err = errors.Join(err, e)
			}
		}()
	}
	fmt.Fprintln(out, l.Addr())
	for lines := bufio.NewScanner(in); lines.Scan() && ctx.Err() == nil; {
		if _, err := fmt.Fprintln(out, cpuTime().Nanoseconds()); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	return nil
}

// listen makes the listener. Sockets lie where nobody else comes, under a short name.
func (v Service) listen() (net.Listener, error) {
	if v.Over == OverTCP {
		return net.Listen("tcp", "127.0.0.1:0")
	}
	dir, err := os.MkdirTemp("", "ringfence-bench-")
	if err != nil {
		return nil, err
	}
	l, err := shm.Listen(filepath.Join(dir, "s"), 0o600)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// answerEach reads frames of size bytes and answers each with some of its own.
func answerEach(size, answer int) func(net.Conn) {
	return func(c net.Conn) {
		b := make([]byte, size)
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			if _, err := c.Write(b[:answer]); err != nil {
				return
			}
		}
	}
}

// servant is such a process, seen from outside.
type servant struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	stderr  strings.Builder
	over    string
	address string
}

// serveApart starts one.
func (s *Suite) serveApart(ctx context.Context, v Service) (*servant, error) {
	if s.Servant == nil {
		return nil, errors.New("bench: a server's own processor time takes a process of its own, and there is no way to start one here")
	}
	cmd, err := s.Servant(ctx, v, s.SegmentBytes, s.RetainBytes)
	if err != nil {
		return nil, err
	}
	p := &servant{cmd: cmd, over: v.Over}
	cmd.Stderr = &p.stderr
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	p.out = bufio.NewScanner(out)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	if !p.out.Scan() {
		return nil, errors.Join(errors.New("bench: the server's process does not serve"), p.stop())
	}
	p.address = p.out.Text()
	return p, nil
}

// cpu is what the process has used.
func (p *servant) cpu() (time.Duration, error) {
	if _, err := fmt.Fprintln(p.in, "cpu"); err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	if !p.out.Scan() {
		return 0, errors.New("bench: the server's process has ended")
	}
	n, err := strconv.ParseInt(p.out.Text(), 10, 64)
	return time.Duration(n), err
}

func (p *servant) stop() error {
	p.in.Close() // it ends with its input
	if p.over != OverTCP && p.address != "" {
		defer removeAll(filepath.Dir(p.address))
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("bench: the server's process: %w: %s", err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}

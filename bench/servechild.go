package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/server"
)

// What a server costs by itself is measured in a process of its own, which has the server
// and nothing else. It says where it listens, and for each line it is sent how much
// processor time it has used, until its input ends.

// Serve is that process: a server of the engine in dir, or without one a peer that takes
// frames of sink bytes and answers each with 16, which is the floor.
func Serve(ctx context.Context, dir string, o engine.Options, sink int, in io.Reader, out io.Writer) (err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if sink > 0 {
		defer l.Close()
		go accept(l, answerEach(sink, 16))
	} else {
		e, err := engine.Open(dir, o)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, e.Close()) }()
		s, err := server.New(e.Backend(), server.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
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
	address string
}

// serveApart starts one.
func (s *Suite) serveApart(ctx context.Context, dir string, sink int) (*servant, error) {
	if s.Servant == nil {
		return nil, errors.New("bench: a server's own processor time takes a process of its own, and there is no way to start one here")
	}
	cmd, err := s.Servant(ctx, dir, s.SegmentBytes, s.RetainBytes, sink)
	if err != nil {
		return nil, err
	}
	p := &servant{cmd: cmd}
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
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("bench: the server's process: %w: %s", err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}

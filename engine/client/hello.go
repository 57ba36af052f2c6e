package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/ringfence/ringfence/engine/shm"
	"github.com/ringfence/ringfence/engine/wire"
)

// connect makes a connection: it dials, says hello, logs in, and where it is to be a sharing
// one has the server share memory.
func (c *Client) connect(ctx context.Context, w way) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.DialTimeout)
	defer cancel()
	nc, err := c.opts.dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if u, ok := nc.(*net.UnixConn); ok && w != plain {
		nc = &shm.Receiver{UnixConn: u, Most: maxFiles}
	}
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	made, err := c.hello(&steady{Conn: nc, patience: c.opts.DialTimeout})
	if err == nil {
		err = c.sameLog(made)
	}
	if err == nil && w == sharing {
		err = c.attach(made.nc, made.in, made)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		nc.Close()
		if made != nil {
			made.discard(err)
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: no answer to the hello: %w", ErrUnavailable, ctx.Err())
		}
		return nil, err
	}
	return made, nil
}

// hello begins a connection, on which nothing else is under way yet.
func (c *Client) hello(nc *steady) (*conn, error) {
	in := bufio.NewReaderSize(nc, 64<<10)
	msg, err := exchange(nc, in, 1, wire.KeyHello, &wire.Hello{
		Magic: wire.Magic, MinVersion: wire.Version, MaxVersion: wire.Version, Client: c.opts.Name,
	})
	if err != nil {
		return nil, err
	}
	reply := msg.(*wire.HelloReply)
	if reply.Version != wire.Version {
		return nil, fmt.Errorf("%w: it chose version %d of the protocol, this client speaks %d", ErrProtocol, reply.Version, wire.Version)
	}
	if reply.MaxFrame < wire.MaxFirst || reply.MaxRequests == 0 {
		return nil, fmt.Errorf("%w: it takes frames of %d bytes and %d requests at a time", ErrProtocol, reply.MaxFrame, reply.MaxRequests)
	}
	if reply.Authenticate {
		if err := c.authenticate(nc, in, reply.Mechanisms); err != nil {
			return nil, err
		}
	}
	beat := c.opts.Heartbeat
	if idle := time.Duration(reply.IdleMs) * time.Millisecond; idle > 0 {
		beat = max(min(beat, idle/3), time.Millisecond)
	}
	nc.patience = 2 * beat
	files, _ := nc.Conn.(*shm.Receiver)
	return &conn{
		nc: nc, socket: socketOf(nc.Conn), in: in, log: reply.Log, heartbeat: beat,
		limit: min(reply.MaxFrame, wire.MaxFrame), slots: int(min(reply.MaxRequests, maxSlots)),
		wake: make(chan struct{}, 1), dead: make(chan struct{}),
		pending: map[uint32]*request{}, lastID: 3, mem: c.mem, files: files,
	}, nil
}

// socketOf is the socket of a connection that is nothing but one.
func socketOf(nc net.Conn) syscall.RawConn {
	s, ok := nc.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// maxSlots bounds the requests on a connection that wait for their answers.
const maxSlots = 1 << 16

func (c *Client) authenticate(nc net.Conn, in *bufio.Reader, mechanisms []string) error {
	m := &wire.Authenticate{Mechanism: "password", User: c.opts.User, Secret: []byte(c.opts.Password)}
	switch {
	case c.opts.User == "" && c.opts.Password == "":
		m.Mechanism = "certificate"
	case c.opts.User == "":
		m.Mechanism = "token"
	}
	switch {
	case m.Mechanism == "certificate" && !slices.Contains(mechanisms, m.Mechanism), m.Mechanism == "password" && c.opts.Password == "":
		return fmt.Errorf("%w: it wants credentials, a user with a password or a token", ErrRefused)
	case !slices.Contains(mechanisms, m.Mechanism):
		return fmt.Errorf("%w: it takes %q to log in, not a %s", ErrRefused, mechanisms, m.Mechanism)
	}
	_, err := exchange(nc, in, 2, wire.KeyAuthenticate, m)
	return err
}

// exchange asks one question on a connection that nobody else uses and waits for the
// answer. The server may send no more than a little.
func exchange(nc net.Conn, in *bufio.Reader, id uint32, key wire.Key, m wire.Message) (any, error) {
	var enc wire.Encoder
	frame := enc.Frame(key, 0, id, m, 0)
	if len(frame) == 0 || len(frame)-wire.HeadSize > wire.MaxFirst {
		return nil, fmt.Errorf("client: %s is longer than %d bytes", key, wire.MaxFirst)
	}
	// A server that turns clients away says why and closes, whatever it is asked.
	_, failed := nc.Write(frame)
	h, err := readHead(in, wire.MaxFirst)
	if errors.Is(err, ErrProtocol) {
		return nil, err
	}
	var msg []byte
	if err == nil {
		msg, err = readInto(in, nil, int(h.Message))
	}
	switch {
	case err != nil && failed != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, failed)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case h.ID == 0:
		return nil, meant(refusal(h, msg))
	case h.ID != id || h.Key != key || h.Raw() != 0:
		return nil, fmt.Errorf("%w: %s was answered with %s", ErrProtocol, key, h.Key)
	}
	a, err := unpack(h, msg)
	if err == nil {
		err = meant(a.err)
	}
	return a.msg, err
}

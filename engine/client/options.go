package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine/api"
)

// Options say how a server is reached. The zero value is production for a server that
// asks for no credentials.
type Options struct {
	// User and Password are sent if the server asks for them. A Password without a
	// User is a token. Without either the certificate of TLS says who this is.
	User, Password string
	// TLS configures TLS, and asks for it where the address does not. ServerName is the
	// address's host if it is empty. There is none on a Unix socket, which does not leave
	// the host.
	TLS *tls.Config
	// DialTimeout bounds one attempt to connect, the hello included; 0 means 10 s.
	DialTimeout time.Duration
	// RequestTimeout bounds a request and a batch of records, with everything that is
	// tried again, but for the time that a quota holds up; 0 means 30 s.
	RequestTimeout time.Duration
	// Heartbeat is the longest silence on a connection; 0 means 10 s. A server that does
	// not answer for two is taken for dead.
	Heartbeat time.Duration
	// MemoryBytes is what all batches of all producers take; 0 means 64 MiB.
	MemoryBytes int
	// Logger hears of connections lost and made again; nil means slog.Default().
	Logger *slog.Logger
	// Name tells the server who this is, for its logs.
	Name string

	dial func(context.Context) (net.Conn, error) // of tests
}

const minMemory = 1 << 20

func (o Options) withDefaults() (Options, error) {
	o.DialTimeout = cmp.Or(o.DialTimeout, 10*time.Second)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 30*time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, 10*time.Second)
	o.MemoryBytes = cmp.Or(o.MemoryBytes, 64<<20)
	o.Name = cmp.Or(o.Name, "ringfence-go")
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case o.DialTimeout < 0 || o.RequestTimeout < 0 || o.Heartbeat < 0:
		return o, errors.New("client: DialTimeout, RequestTimeout and Heartbeat may not be negative")
	case o.MemoryBytes < minMemory:
		return o, fmt.Errorf("client: MemoryBytes is %d, must be %d at least", o.MemoryBytes, minMemory)
	case len(o.Name) > 255 || len(o.User) > 255:
		return o, errors.New("client: Name and User have 255 bytes at most")
	}
	return o, nil
}

// address is where a server listens.
type address struct {
	network, host string
	tls           *tls.Config // nil: plain
}

// CheckAddress says, with [ErrInvalidAddress], whether [Dial] could make sense of an
// address. It connects to nothing.
func CheckAddress(addr string) error {
	_, err := parseAddress(addr, nil)
	return err
}

// parseAddress reads "host:port", "tls://host:port" and "unix:/path".
func parseAddress(s string, config *tls.Config) (address, error) {
	if path, ok := strings.CutPrefix(s, "unix:"); ok {
		if path == "" {
			return address{}, fmt.Errorf("%w: %q: there is no path behind unix:, as in unix:/run/ringfence", ErrInvalidAddress, s)
		}
		return address{network: "unix", host: path}, nil
	}
	rest, secure := strings.CutPrefix(s, "tls://")
	a := address{network: "tcp", host: rest}
	name, port, err := net.SplitHostPort(rest)
	if err == nil && port != "" {
		_, err = net.LookupPort("tcp", port) // a number, or the name of a service; it asks no network
	}
	if err != nil || port == "" {
		return a, fmt.Errorf("%w: %q: want host:port, tls://host:port or unix:/path", ErrInvalidAddress, s)
	}
	if !secure && config == nil {
		return a, nil
	}
	if a.tls = config.Clone(); a.tls == nil {
		a.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	a.tls.ServerName = cmp.Or(a.tls.ServerName, name)
	return a, nil
}

// dial connects, and shakes hands if it is TLS.
func (a address) dial(ctx context.Context) (net.Conn, error) {
	nc, err := new(net.Dialer).DialContext(ctx, a.network, a.host)
	if err != nil || a.tls == nil {
		return nc, err
	}
	secure := tls.Client(nc, a.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return secure, nil
}

// producerDefaults fills in what the options leave open.
func producerDefaults(o api.ProducerOptions, memory int) (api.ProducerOptions, error) {
	o.BatchBytes = cmp.Or(o.BatchBytes, min(256<<10, largestBatch(memory)))
	o.MaxInFlight = cmp.Or(o.MaxInFlight, 5)
	switch {
	case o.BatchBytes < minBatch || o.BatchBytes > api.MaxBatchBytes:
		return o, fmt.Errorf("client: BatchBytes is %d, must be %d to %d", o.BatchBytes, minBatch, api.MaxBatchBytes)
	case o.BatchBytes > largestBatch(memory):
		return o, fmt.Errorf("client: BatchBytes %d is more than a quarter of MemoryBytes %d: raise MemoryBytes", o.BatchBytes, memory)
	case o.Codec != api.None && o.Codec != api.S2 && o.Codec != api.Zstd:
		return o, fmt.Errorf("client: Codec is %v, want None, S2 or Zstd", o.Codec)
	case o.MaxInFlight < 0 || o.Linger < 0:
		return o, errors.New("client: MaxInFlight and Linger may not be negative")
	}
	return o, nil
}

const minBatch = 4 << 10

// largestBatch is the largest batch that so much memory serves.
func largestBatch(memory int) int { return min(api.MaxBatchBytes, memory/4) }

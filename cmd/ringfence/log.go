package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/wire"
)

// withLog calls f with the topics that the command is about: those of the server that
// --server names, else those of the data directory.
func (a *app) withLog(ctx context.Context, create bool, f func(ctx context.Context, l api.Log) error) (err error) {
	addr, err := a.serverAddress()
	if err != nil {
		return err
	}
	if addr == "" {
		return a.withEngine(ctx, create, func(ctx context.Context, e *engine.Engine) error { return whichAre(f(ctx, linkedLog{e})) })
	}
	if err := a.checkServer(addr); err != nil {
		return err
	}
	o, err := a.clientOptions()
	if err != nil {
		return err
	}
	if o.TLS, err = a.client.tls(); err != nil {
		return err
	}
	c, err := client.Dial(ctx, addr, o)
	if err != nil {
		return howToLogIn(o, howToConnect(addr, a.client.said("server"), o.TLS, err))
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	a.somebody = o.User != "" || o.Password != "" || o.TLS != nil && len(o.TLS.Certificates) > 0
	return whichAre(f(ctx, remoteLog{c}))
}

// withShared is withLog of the server that shares memory at a socket: so many bytes of it
// for batches, or as many as there are by default.
func (a *app) withShared(ctx context.Context, path string, memory int, f func(ctx context.Context, l api.Log) error) (err error) {
	if a.client.server != "" || a.dataDirGiven() {
		return usageError{errors.New("--shm with --server or --data-dir: topics are reached in one way or the other")}
	}
	o, err := a.clientOptions()
	if err != nil {
		return err
	}
	o.MemoryBytes = memory
	c, err := client.DialShm(ctx, path, o)
	if err != nil {
		return howToLogIn(o, howToConnect("unix:"+path, "--shm", nil, err))
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return whichAre(f(ctx, remoteLog{c}))
}

// whichAre adds where to look for the name of what is not there.
func whichAre(err error) error {
	topic := "TOPIC"
	if t := (*engine.TopicError)(nil); errors.As(err, &t) {
		topic = t.Topic
	}
	switch {
	case errors.Is(err, engine.ErrNoSuchTopic):
		return fmt.Errorf("%w: 'ringfence topic ls' lists those that there are", err)
	case errors.Is(err, engine.ErrNoSuchRange):
		return fmt.Errorf("%w: 'ringfence topic describe %s' lists those that there are", err, topic)
	}
	return err
}

// clientOptions are those of any server.
func (a *app) clientOptions() (client.Options, error) {
	o := client.Options{
		Name: "ringfence " + thisVersion().String(), Logger: slog.New(plainLog{w: a.err}),
		RequestTimeout: a.client.timeout, DialTimeout: min(a.client.timeout, 10*time.Second),
	}
	err := a.credentials(&o)
	return o, err
}

// howToConnect adds what to do about a connection that failed. said is what named the
// address.
func howToConnect(addr, said string, config *tls.Config, err error) error {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var plain tls.RecordHeaderError
	secure := (config != nil || strings.HasPrefix(addr, "tls://")) && !strings.HasPrefix(addr, "unix:")
	switch {
	case errors.As(err, &authority):
		return fmt.Errorf("%w: name the authority of the server's certificate with --server-ca", err)
	case errors.As(err, &name):
		return fmt.Errorf("%w: the address has to name the server as its certificate does", err)
	case errors.As(err, &invalid):
		return fmt.Errorf("%w: that is the server's certificate, or one of its authorities", err)
	case secure && refusedCertificate(err) && (config == nil || len(config.Certificates) == 0):
		return fmt.Errorf("%w: the server takes only clients with a certificate of its authority (serve --tls-client-ca): give --client-cert and --client-key", err)
	case secure && refusedCertificate(err):
		return fmt.Errorf("%w: the server does not take the certificate of --client-cert, its variable or the context: "+
			"it has to be of an authority that 'serve --tls-client-ca' names, for clients, and valid today", err)
	case errors.As(err, &plain) && string(plain.RecordHeader[:4]) == "HTTP" || errors.Is(err, client.ErrProtocol):
		return fmt.Errorf("%w: is it the admin address of a server (serve --admin), which speaks HTTP, or another program's? Clients reach a server where --listen says", err)
	case secure && (errors.As(err, &plain) || errors.Is(err, io.EOF)):
		return fmt.Errorf("%w: does it speak TLS there? The address, a certificate or an authority ask for it, on the command line, in %s... or in the context in use", err, variablePrefix)
	case errors.Is(err, io.EOF) && !strings.HasPrefix(addr, "tls://") && !strings.HasPrefix(addr, "unix:"):
		return fmt.Errorf("%w: does it speak TLS? Then the address is tls://%s", err, addr)
	case strings.HasPrefix(addr, "unix:") && errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: the mode of the socket and of its directory must let this user in; serve makes a shared one with --shm-uids and --shm-gids", err)
	case errors.Is(err, client.ErrUnavailable):
		return fmt.Errorf("%w: is 'ringfence serve' running there? The address %s is what %s says", err, addr, said)
	}
	return err
}

// refusedCertificate says whether the server ended a handshake because of the client's
// certificate, or because there was none. Package crypto/tls has no type for what it was
// told, which comes as the error of an operation of this name.
func refusedCertificate(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate")
}

// howToLogIn adds how to be somebody for a server that wants to know who it is.
func howToLogIn(o client.Options, err error) error {
	if errors.Is(err, wire.CodeRateLimited) {
		return denied{err} // locked out, or an address that tries too often
	}
	if errors.Is(err, client.ErrRefused) && !errors.Is(err, wire.CodePermissionDenied) && o.User == "" && o.Password == "" {
		return fmt.Errorf("%w: give --user and --password-file, or set RINGFENCE_USER and RINGFENCE_PASSWORD, or RINGFENCE_TOKEN", err)
	}
	return err
}

// tls is nil where the address alone decides.
func (f clientFlags) tls() (*tls.Config, error) {
	if f.ca == "" && f.cert == "" && f.key == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, usageError{fmt.Errorf("%s: %w", f.said("server-ca"), err)}
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usageError{fmt.Errorf("%s: %s holds no certificate", f.said("server-ca"), f.ca)}
		}
	}
	if (f.cert == "") != (f.key == "") {
		return nil, usageError{fmt.Errorf("a client's certificate takes both --client-cert and --client-key, or %s and %s", variableOf("client-cert"), variableOf("client-key"))}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, usageError{fmt.Errorf("%s %q with %s %q: %w", f.said("client-cert"), f.cert, f.said("client-key"), f.key, err)}
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

type linkedLog struct{ *engine.Engine }

func (l linkedLog) NewProducer(o api.ProducerOptions) (api.Producer, error) {
	p, err := l.Engine.NewProducer(o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (l linkedLog) NewConsumer(o api.ConsumerOptions) (api.Consumer, error) {
	c, err := l.Engine.NewConsumer(o)
	if err != nil {
		return nil, err
	}
	return c, nil
}

type remoteLog struct{ *client.Client }

func (l remoteLog) NewProducer(o api.ProducerOptions) (api.Producer, error) {
	p, err := l.Client.NewProducer(o)
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (l remoteLog) NewConsumer(o api.ConsumerOptions) (api.Consumer, error) {
	c, err := l.Client.NewConsumer(o)
	if err != nil {
		return nil, err
	}
	return c, nil
}

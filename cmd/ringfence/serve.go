package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/shm"
	"github.com/spf13/cobra"
)

type serveFlags struct {
	config   string
	listen   string
	socket   string
	shm      string
	admin    string
	tlsCert  string
	tlsKey   string
	clientCA string

	adminPassword string
	insecure      bool
	noAuth        bool
	grace         time.Duration
	logFormat     string
	logLevel      string

	segment, arena, reserve    sizeFlag
	maxConns, maxPerIP         int
	maxRequests                int
	idle, frameTime, writeTime time.Duration
	groupSession               time.Duration

	shmUIDs, shmGIDs    []uint
	shmTrusted          []uint
	shmArena, shmMemory sizeFlag
	shmClients          int
	shmUserMemory       sizeFlag
	shmUserClients      int
}

func (a *app) serveCommand() *cobra.Command {
	f := serveFlags{segment: 256 << 20, arena: 64 << 20, reserve: 64 << 20, shmArena: 64 << 20, shmMemory: 1 << 30}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a data directory over the network",
		Long: `Open the data directory and serve it over framed TCP until SIGINT or SIGTERM: then
no more requests are taken, those under way are answered, and the directory is
closed.

Every setting below can also stand in the environment, as RINGFENCE_ and its name
in capitals with _ for -, and in the file that --config names, as lines of
"name = value", where data-dir and io are two more. The command line wins over the environment,
that over the file.
What nobody knows is refused, and each value is logged with where it is from. A value
that cannot be used ends with exit code 2, wherever it stands; values that would be
unsafe, or are not complete, end with 78.

The admin address answers /health (the process is up), /ready (it takes requests),
/metrics (Prometheus), /shm (what 'ringfence shm' shows) and /debug/pprof. It is for the
operator: give it no address that others reach.

Where only this machine reaches the server, everybody can do everything until there is
a user ('ringfence user add'); from then on every client has to log in.

An address that other machines reach takes TLS (--tls-cert, --tls-key). Clients have to
log in there from the start: where there is no user yet, one is made, admin, whose
password is shown once on standard error, or taken from --admin-password-file. With
--tls-client-ca only clients with a certificate get that far; while there are no users
that is enough, and later its common name is the user, for clients that send no password.

--insecure says that the network is trusted: neither TLS nor, without users, logins are
asked for. --no-auth asks nobody, whatever users there are; on an address that other
machines reach it takes --insecure as well.`,
		Example: `  ringfence serve --data-dir /var/lib/ringfence
  ringfence serve --data-dir /var/lib/ringfence --listen 0.0.0.0:4040 --tls-cert c.pem --tls-key k.pem`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd, &f) },
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.StringVar(&f.config, "config", "", "file of settings")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:4040", "address for clients; \"\" for none")
	fl.StringVar(&f.socket, "socket", "", "Unix socket for clients of this host, who speak no TLS there")
	fl.StringVar(&f.shm, "shm", "", "Unix socket for programs of this host that share memory with the server")
	fl.UintSliceVar(&f.shmUIDs, "shm-uids", nil, "users, by number, whose programs may; with neither of these two the server's own")
	fl.UintSliceVar(&f.shmGIDs, "shm-gids", nil, "groups whose programs may")
	fl.UintSliceVar(&f.shmTrusted, "shm-trusted-uids", nil, "users who may, and whose large batches are written without a copy")
	fl.Var(&f.shmArena, "shm-arena", "most memory that one of them gets")
	fl.Var(&f.shmMemory, "shm-memory", "most memory that all of them get")
	fl.IntVar(&f.shmClients, "shm-clients", 64, "most of them at a time")
	fl.Var(&f.shmUserMemory, "shm-user-memory", "most memory that those of one user get; if not set, half of --shm-memory, or all where only one user may")
	fl.IntVar(&f.shmUserClients, "shm-user-clients", 0, "most of them of one user; 0 for half of --shm-clients, or all where only one user may")
	fl.StringVar(&f.admin, "admin", "127.0.0.1:4041", "address of health, metrics and profiles; \"\" for none")
	fl.StringVar(&f.tlsCert, "tls-cert", "", "certificate chain, PEM; a file that changes is read again")
	fl.StringVar(&f.tlsKey, "tls-key", "", "its private key, PEM")
	fl.StringVar(&f.clientCA, "tls-client-ca", "", "take only clients with a certificate of these authorities, PEM")
	fl.BoolVar(&f.insecure, "insecure", false, "serve other machines without TLS and, while there are no users, without logins")
	fl.BoolVar(&f.noAuth, "no-auth", false, "let everybody do everything, although there are users")
	fl.StringVar(&f.adminPassword, "admin-password-file", "", "password of the administrator that is made where there are no users")
	fl.DurationVar(&f.grace, "shutdown-grace", 30*time.Second, "how long requests under way may take when it stops")
	fl.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.Var(&f.segment, "segment-size", "size at which segments roll")
	fl.Var(&f.arena, "arena-size", "memory for records on their way, pinned")
	fl.Var(&f.reserve, "reserve-size", "free space below which records are refused")
	fl.IntVar(&f.maxConns, "max-connections", 10000, "connections at a time; no more than a quarter of the files that may be open")
	fl.IntVar(&f.maxPerIP, "max-connections-per-ip", 1000, "of these from one address, or one user over Unix sockets; if not set, no more than three quarters of --max-connections")
	fl.IntVar(&f.maxRequests, "max-requests", 256, "requests of one connection at a time")
	fl.DurationVar(&f.idle, "idle-timeout", time.Minute, "a connection that sends nothing for so long is closed")
	fl.DurationVar(&f.frameTime, "frame-timeout", 30*time.Second, "for one request to arrive whole")
	fl.DurationVar(&f.groupSession, "group-session", 30*time.Second, "for a group's member to be silent before its ranges go to others")
	fl.DurationVar(&f.writeTime, "write-timeout", 30*time.Second, "for a client to take what it is sent")
	for _, list := range []string{"shm-uids", "shm-gids", "shm-trusted-uids"} {
		fl.Lookup(list).DefValue = "" // in place of []
	}
	return cmd
}

func (a *app) serve(cmd *cobra.Command, f *serveFlags) (err error) {
	if named, set := a.env(configVar); set && !cmd.Flags().Changed("config") {
		f.config = named
	}
	settings, err := resolveSettings(cmd, f.config, a.environ())
	if err != nil {
		return err
	}
	where, err := a.dataDirFrom(f.config)
	if err != nil {
		return err
	}
	settings = append(settings, where)
	defer func() { err = fromWhere(err, settings) }()
	log, err := f.logger(a)
	if err != nil {
		return err
	}
	if err := checkIO(a.engine); err != nil {
		return err
	}
	if err := f.check(); err != nil {
		return usageError{err}
	}
	tlsConfig, err := f.tls(log)
	if err != nil {
		return err
	}
	reach, err := f.mayListen()
	if err != nil {
		return err
	}
	a.files = []string{f.config, f.tlsCert, f.tlsKey, f.clientCA, f.adminPassword, f.socket, f.shm}
	dir, err := a.dirToOpen(true)
	if err != nil {
		return err
	}
	d := &daemon{log: log, grace: f.grace}
	defer d.closeListeners()
	if err := d.bind(f); err != nil {
		return err
	}
	f.boundConns(settings, log)
	for _, s := range settings {
		log.Info("setting", "name", s.Name, "value", s.Value, "source", s.Source)
	}
	d.adminServer() // answers not ready while the directory recovers
	d.engine, err = engine.Open(dir, engine.Options{
		IO: a.engine, RawWait: true, Logger: log,
		SegmentBytes: int64(f.segment), ArenaBytes: int(f.arena), ReserveBytes: uint64(f.reserve),
	})
	if errors.Is(err, engine.ErrLocked) {
		return fmt.Errorf("%w; stop that process or, if it is 'ringfence serve', reach it with --server", err)
	}
	if err != nil {
		return err
	}
	err = a.firstUser(cmd.Context(), d, f, reach)
	if err == nil {
		err = d.lockedOut(context.WithoutCancel(cmd.Context()), f, reach, dir)
	}
	if err != nil {
		return errors.Join(err, d.engine.Close())
	}
	o := server.Options{
		Name: "ringfence " + thisVersion().String(), TLS: tlsConfig, Logger: log,
		MaxConns: f.maxConns, MaxConnsPerIP: f.maxPerIP, MaxRequests: f.maxRequests,
		IdleTimeout: f.idle, FrameTimeout: f.frameTime, WriteTimeout: f.writeTime,
		Session: f.groupSession,
		Sharing: server.Sharing{
			UIDs: numbers(f.shmUIDs), GIDs: numbers(f.shmGIDs), Trusted: numbers(f.shmTrusted),
			ArenaBytes: int64(f.shmArena), TotalBytes: int64(f.shmMemory), Clients: f.shmClients,
			UserBytes: int64(f.shmUserMemory), UserClients: f.shmUserClients,
		},
	}
	d.guard(f, reach, &o)
	d.server, err = server.New(d.engine.Backend(), o)
	if err != nil {
		return errors.Join(usageError{err}, d.engine.Close())
	}
	return d.run(cmd.Context())
}

// boundConns has the settings say how many connections there can be.
func (f *serveFlags) boundConns(settings []setting, log *slog.Logger) {
	of := func(name string) *setting {
		return &settings[slices.IndexFunc(settings, func(s setting) bool { return s.Name == name })]
	}
	all, perIP := of("max-connections"), of("max-connections-per-ip")
	o := server.Options{MaxConns: f.maxConns, MaxConnsPerIP: f.maxPerIP}
	if perIP.Source == "default" {
		o.MaxConnsPerIP = 0
	}
	asked := f.maxConns
	f.maxConns, f.maxPerIP = o.ConnLimits()
	if f.maxConns < asked && all.Source != "default" {
		log.Warn("there can be fewer connections than max-connections says: they get a quarter of the files that the process may have open; raise that limit (ulimit -n, LimitNOFILE)",
			"max-connections", asked, "connections", f.maxConns)
	}
	all.Value, perIP.Value = strconv.Itoa(f.maxConns), strconv.Itoa(f.maxPerIP)
}

func (f *serveFlags) logger(a *app) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.logLevel)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level is %q: want debug, info, warn or error", f.logLevel)}
	}
	o := &slog.HandlerOptions{Level: level}
	switch f.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(a.err, o)), nil
	case "json":
		o.ReplaceAttr = func(_ []string, attr slog.Attr) slog.Attr {
			if attr.Value.Kind() == slog.KindDuration { // else it is a number of nobody knows what
				attr.Value = slog.StringValue(attr.Value.Duration().String())
			}
			return attr
		}
		return slog.New(slog.NewJSONHandler(a.err, o)), nil
	}
	return nil, usageError{fmt.Errorf("--log-format is %q: want text or json", f.logFormat)}
}

// daemon is a server with its listeners, from bind to the end of run.
type daemon struct {
	log    *slog.Logger
	grace  time.Duration
	engine *engine.Engine
	server *server.Server
	auth   *engine.Authenticator // nil: nobody logs in

	clients []net.Listener
	shared  *net.UnixListener // nil: no memory is shared
	adminAt net.Listener
	admin   *http.Server
	state   adminState
}

// bind takes the addresses before the directory is opened, which may take a while: a
// mistake is told at once.
func (d *daemon) bind(f *serveFlags) error {
	listen := func(setting, network, addr string) (net.Listener, error) {
		l, err := net.Listen(network, addr)
		if err != nil {
			return nil, fmt.Errorf("--%s %s: %w", setting, addr, err)
		}
		return l, nil
	}
	if f.listen != "" {
		l, err := listen("listen", "tcp", f.listen)
		if err != nil {
			return err
		}
		d.clients = append(d.clients, l)
	}
	if f.socket != "" {
		if err := removeStale(f.socket); err != nil {
			return err
		}
		l, err := listen("socket", "unix", f.socket)
		if err != nil {
			return err
		}
		d.clients = append(d.clients, l)
	}
	if f.shm != "" {
		mode := os.FileMode(0o660)
		if len(f.shmUIDs)+len(f.shmGIDs)+len(f.shmTrusted) > 0 {
			mode = 0o666 // who connects is asked who he is, and told if he may not
		}
		var err error
		if d.shared, err = shm.Listen(f.shm, mode); err != nil {
			return fmt.Errorf("--shm: %w", err)
		}
	}
	if f.admin != "" {
		var err error
		if d.adminAt, err = listen("admin", "tcp", f.admin); err != nil {
			return err
		}
	}
	return nil
}

// removeStale removes a socket that a process left which was killed. One that somebody
// listens on, and anything else, stays.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if err != nil || st.Mode()&os.ModeSocket == 0 {
		return nil // listening says what is wrong, if something is
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		c.Close()
		return fmt.Errorf("listening on %s: another process does", path)
	}
	return os.Remove(path)
}

// run serves until ctx ends, then drains and closes.
func (d *daemon) run(ctx context.Context) error {
	failed := make(chan error, len(d.clients)+1)
	for _, l := range d.clients {
		d.log.Info("serving", "address", l.Addr().String())
		go func() { failed <- d.server.Serve(l) }()
	}
	served := len(d.clients)
	if d.shared != nil {
		d.log.Info("sharing memory", "address", d.shared.Addr().String())
		go func() { failed <- d.server.ServeShared(d.shared) }()
		served++
	}
	d.state.ready(d.engine, d.server, d.auth)
	var err error
	select {
	case <-ctx.Done():
		d.log.Info("stopping", "grace", d.grace)
	case err = <-failed:
		served--
		d.log.Error("a listener failed", "error", err)
	}
	d.state.stopping()
	drain, cancel := context.WithTimeout(context.Background(), d.grace)
	defer cancel()
	if e := d.server.Shutdown(drain); e != nil {
		d.log.Warn("not every request was answered in time", "error", e)
	}
	for range served {
		if e := <-failed; !errors.Is(e, server.ErrShutdown) {
			err = errors.Join(err, e)
		}
	}
	if e := d.engine.Close(); e != nil {
		err = errors.Join(err, fmt.Errorf("closing the data directory: %w", e))
	}
	d.log.Info("stopped")
	return err
}

func (d *daemon) closeListeners() {
	for _, l := range d.clients {
		l.Close()
	}
	if d.shared != nil {
		d.shared.Close()
	}
	if d.admin != nil {
		d.admin.Close()
	}
}

package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/ringfence/engine/wire"
)

// Options choose how a server serves; the zero value takes everybody's word.
type Options struct {
	// Name is the server's name and version, for clients to log.
	Name string
	// TLS, if set, is what every connection speaks from its first byte on, but for those
	// over Unix sockets, which do not leave the host.
	TLS *tls.Config
	// Authenticate checks who a client is; nil lets everybody in. ctx ends with the time
	// that a client has to log in. A *wire.Error is sent; what another error says is
	// logged alone.
	Authenticate func(ctx context.Context, l Login) (Identity, error)
	// ChangePassword gives whoever is logged in another password, if he can log in as l says;
	// nil does not do that.
	ChangePassword func(ctx context.Context, who Identity, l Login, password []byte) error
	// Anonymous says whether a client that connects now need not log in although there
	// is Authenticate; nil: it must.
	Anonymous func() bool
	// Mechanisms are those that Authenticate knows; nil means "password" and "token".
	// "certificate" is offered only to clients that showed one.
	Mechanisms []string
	// Allow answers nil if somebody may do something to what is named, see [Op], and
	// otherwise why not, which is sent, a *wire.Error as it is. nil allows everything. It
	// is asked about every request, those to produce and to fetch as well, and does not
	// block.
	Allow func(who Identity, op Op, name string) error
	// Spend is told of the records and bytes of each frame before it is stored, and refuses
	// it with a *wire.Error. It does not block; nil has no quotas.
	Spend func(who Identity, records, bytes int) error
	// Audit hears of requests that change what belongs to operators, done or not, and of
	// what Allow refused: of one connection's requests to produce and to fetch, one refusal
	// in a second. It is called by many goroutines.
	Audit func(Event)
	// Logger hears of what ends connections and of what fails inside; nil means
	// slog.Default.
	Logger *slog.Logger

	MaxConns int // connections at a time; 0 means 10000. No more than a quarter of the files that the process may have open
	// MaxConnsPerIP is how many of these may be from one address, an IPv6 network of 64
	// bits, or one user of this host over Unix sockets; 0 means 1000, and no more than
	// three quarters of MaxConns: one place must not keep all others out.
	MaxConnsPerIP int
	MaxRequests   int // requests of a connection not answered yet; 0 means 256. More wait in its socket
	MaxHandles    int // producers and consumers of a connection; 0 means 256

	// ConnBytes bounds what one connection's requests take until they are answered, and
	// apart from that what its pages take until they are sent; 0 means 32 MiB. One
	// request and one page are let in whatever they take.
	ConnBytes int64
	// TotalBytes bounds the same of all connections, without the record frames that lie in
	// memory of the engine, which bounds that itself, and but for 8 KiB of each; 0 means
	// 256 MiB. Where there is no room for a request, those go that are slowest to arrive.
	TotalBytes int64
	// ReceiveBytes is how much memory of the engine may wait for record frames that are
	// still on their way; 0 means 16 MiB. Those beyond it are received elsewhere and
	// copied, so that clients that send slowly do not keep it from the others.
	ReceiveBytes int64

	Sharing Sharing // of memory, with the clients of ServeShared

	MaxGroups  int // groups that have members; 0 means 10000
	MaxMembers int // of one group; 0 means 1000
	// Session is for how long a member of a group may be silent before its ranges go to
	// others; 0 means 30 s.
	Session time.Duration

	LoginTimeout time.Duration // from the first byte to being logged in; 0 means 10 s
	IdleTimeout  time.Duration // between two requests; 0 means 60 s. Clients send a Ping twice in it
	FrameTimeout time.Duration // from a frame's first byte to its last; 0 means 30 s
	WriteTimeout time.Duration // for a client to take what it is sent, up to 1 MiB; 0 means 30 s
}

// Login is a client's word on who it is.
type Login struct {
	Mechanism   string
	User        string
	Secret      []byte // valid during the call
	Remote      net.Addr
	From        Origin // of Remote, or which user of this host it is
	Connection  uint64
	Certificate *x509.Certificate // that the client showed and that was verified; nil: none
}

// Identity is who a connection is logged in as.
type Identity struct {
	User string // "" where nobody has to log in
	// Proof is what Authenticate wants Allow to know of how the client logged in.
	Proof any
}

// Event is something for the audit log.
type Event struct {
	User       string
	Remote     net.Addr
	Connection uint64
	Request    wire.Key
	About      string // the topic, policy, user or the like; with a group, "TOPIC/GROUP"
	Err        error  // nil: it was done
}

// Op is what somebody wants to do, to a topic unless it says otherwise.
type Op string

// The operations that Options.Allow is asked about.
const (
	OpCreate   Op = "create"
	OpDelete   Op = "delete"
	OpDescribe Op = "describe" // also whether it is listed
	OpAlter    Op = "alter"    // split, merge, roll, bind to a policy
	OpProduce  Op = "produce"
	OpConsume  Op = "consume"

	OpUseGroup      Op = "use group"      // read its position, move it, take part; named is the group
	OpDescribeGroup Op = "describe group" // likewise
	OpDeleteGroup   Op = "delete group"   // likewise

	OpPolicy   Op = "define policies" // also delete them; nothing is named
	OpPolicies Op = "list policies"   // likewise
	OpUsers    Op = "manage users"    // with their grants, tokens and quotas; likewise
)

// about is what an operation is about, in words.
func (op Op) about(name string) string {
	switch op {
	case OpPolicy, OpPolicies:
		return "policies"
	case OpUsers:
		return "users"
	case OpUseGroup, OpDescribeGroup, OpDeleteGroup:
		return fmt.Sprintf("group %q", name)
	}
	return fmt.Sprintf("topic %q", name)
}

// maxPage is the most bytes of frames that a page is asked for. A page with the largest
// frame alone still fits wire.MaxFrame.
const (
	defaultPage = 1 << 20
	maxPage     = 8 << 20
)

// fileLimit is how many files the process may have open. Of that the engine takes half,
// and a connection besides its socket a file of which it has a page, or shared memory.
func fileLimit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 1024
	}
	return int(min(max(l.Cur, 64), 1<<20))
}

// ConnLimits are what MaxConns and MaxConnsPerIP come to, where they are not below 0.
func (o Options) ConnLimits() (all, perIP int) {
	all = min(cmp.Or(o.MaxConns, 10000), fileLimit()/4)
	return all, min(cmp.Or(o.MaxConnsPerIP, min(1000, all-all/4)), all)
}

func (o Options) withDefaults() (Options, error) {
	if o.Mechanisms == nil {
		o.Mechanisms = []string{"password", "token"}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.MaxConns, o.MaxConnsPerIP = o.ConnLimits()
	o.MaxRequests = cmp.Or(o.MaxRequests, 256)
	o.MaxHandles = cmp.Or(o.MaxHandles, 256)
	o.ConnBytes = cmp.Or(o.ConnBytes, 32<<20)
	o.TotalBytes = cmp.Or(o.TotalBytes, 256<<20)
	o.ReceiveBytes = cmp.Or(o.ReceiveBytes, 16<<20)
	o.MaxGroups = cmp.Or(o.MaxGroups, 10000)
	o.MaxMembers = cmp.Or(o.MaxMembers, 1000)
	o.Session = cmp.Or(o.Session, 30*time.Second)
	o.LoginTimeout = cmp.Or(o.LoginTimeout, 10*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 60*time.Second)
	o.FrameTimeout = cmp.Or(o.FrameTimeout, 30*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	for _, n := range []int64{
		int64(o.MaxConns), int64(o.MaxConnsPerIP), int64(o.MaxRequests), int64(o.MaxHandles), int64(o.MaxGroups), int64(o.MaxMembers), int64(o.Session),
		o.ConnBytes, o.ReceiveBytes,
		int64(o.LoginTimeout), int64(o.IdleTimeout), int64(o.FrameTimeout), int64(o.WriteTimeout),
	} {
		if n < 0 {
			return o, fmt.Errorf("server: a limit of %d in the options: leave it 0 for the default", n)
		}
	}
	var err error
	if o.Sharing, err = o.Sharing.withDefaults(); err != nil {
		return o, err
	}
	if least := int64(2 * wire.MaxFrame); o.TotalBytes < least {
		return o, fmt.Errorf("server: TotalBytes is %d, and one frame alone may take %d while it comes", o.TotalBytes, least)
	}
	return o, nil
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/server"
)

// adminName is the user that the first start makes.
const adminName = "admin"

// reach says who reaches the server, and so what is asked of clients.
type reach struct {
	others bool // other machines
	trust  bool // the operator says that whoever gets there is trusted: --insecure
	tls    bool
	known  bool // TLS takes only clients with a certificate of the authorities
}

// mayListen refuses what would let strangers in, or passwords out.
func (f *serveFlags) mayListen() (r reach, err error) {
	if f.listen == "" && f.socket == "" && f.shm == "" {
		return r, refusal{errors.New("neither --listen nor --socket nor --shm: nobody could reach it")}
	}
	if f.admin != "" && !f.insecure {
		if local, err := isLoopback(f.admin); err != nil {
			return r, usageError{fmt.Errorf("--admin: %w", err)}
		} else if !local {
			return r, refusal{fmt.Errorf("--admin %s is an address that other machines reach, and whoever does could look into the process's memory: "+
				"give it one of this machine alone, or say --insecure if the network is trusted", f.admin)}
		}
	}
	r = reach{trust: f.insecure, tls: f.tlsCert != "", known: f.clientCA != ""}
	if f.listen == "" {
		return r, nil
	}
	local, err := isLoopback(f.listen)
	if err != nil {
		return r, usageError{fmt.Errorf("--listen: %w", err)}
	}
	r.others = !local
	switch {
	case !r.others || r.trust:
		return r, nil
	case f.noAuth:
		return r, refusal{fmt.Errorf("--no-auth and --listen %s, an address that other machines reach: whoever does could read and write everything; "+
			"listen on loopback or a Unix socket, or say --insecure as well if the network is trusted", f.listen)}
	case !r.tls:
		return r, refusal{fmt.Errorf("--listen %s is an address that other machines reach: give --tls-cert and --tls-key, so that nobody listens in, "+
			"or say --insecure if the network is trusted", f.listen)}
	}
	return r, nil
}

// open says whether clients need not log in while there are no users.
func (r reach) open() bool { return !r.others || r.trust || r.known }

// guard has the server ask who its clients are.
func (d *daemon) guard(f *serveFlags, r reach, o *server.Options) {
	if f.noAuth {
		d.log.Warn("nobody is asked who he is: whoever reaches the server can read and write everything (--no-auth)")
		return
	}
	d.auth = d.engine.Authenticator(engine.AuthOptions{Open: r.open(), Certificates: r.known, Log: d.log})
	d.auth.Guard(o)
}

// lockedOut warns where there are users and no administrator can log in, as when what
// took their certificates is not there any more.
func (d *daemon) lockedOut(ctx context.Context, f *serveFlags, r reach, dir string) error {
	if f.noAuth || r.known {
		return nil
	}
	users, err := d.engine.Users(ctx)
	if err != nil || len(users) == 0 {
		return err
	}
	for _, u := range users {
		grants, err := d.engine.Grants(ctx, u.Name)
		if err != nil {
			return err
		}
		tokens, err := d.engine.Tokens(ctx, u.Name)
		if err != nil {
			return err
		}
		live := func(t engine.Token) bool { return t.Expires.IsZero() || t.Expires.After(time.Now()) }
		if (&cp.User{Grants: grants}).Allows(cp.OnCluster, cp.Users, "") && (u.Password || slices.ContainsFunc(tokens, live)) {
			return nil
		}
	}
	d.log.Warn("no administrator can log in: none has a password or a token, and client certificates are not taken without --tls-client-ca; "+
		"stop the server and give one a password with 'ringfence user passwd NAME'", "data-dir", dir)
	return nil
}

// firstUser makes an administrator where clients have to log in and there is nobody
// whom they could log in as, or where it was told the password of one.
func (a *app) firstUser(ctx context.Context, d *daemon, f *serveFlags, r reach) error {
	if f.noAuth || f.adminPassword == "" && r.open() {
		return nil
	}
	users, err := d.engine.Users(ctx)
	if err != nil || len(users) > 0 {
		return err
	}
	password, told := "", f.adminPassword != ""
	if told {
		if password, err = readSecret(f.adminPassword); err != nil {
			return refusal{fmt.Errorf("--admin-password-file: %w", err)}
		}
	} else {
		b := make([]byte, 18)
		rand.Read(b) // never fails
		password = base64.RawURLEncoding.EncodeToString(b)
	}
	err = d.engine.PutUser(ctx, adminName, password, engine.UserOptions{Grants: []engine.Grant{cp.Administrator}})
	if errors.Is(err, engine.ErrInvalidPassword) {
		return refusal{fmt.Errorf("--admin-password-file: %w", err)}
	}
	if err != nil {
		return err
	}
	d.log.Info("there were no users: made an administrator", "user", adminName)
	if !told {
		fmt.Fprintf(a.err, "ringfence: there were no users, and clients have to log in: made an administrator.\n"+
			"  user:     %s\n  password: %s\n"+
			"It is not shown again. 'ringfence user passwd %s' sets another one; with --data-dir also when this one is lost.\n", adminName, password, adminName)
	}
	return nil
}

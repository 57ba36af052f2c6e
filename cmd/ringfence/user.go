package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/spf13/cobra"
)

func (a *app) userCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "user",
		Short: "Users who may log in to a server, and their tokens",
		Long: `Users who may log in to a server, and their tokens. Without a user a server that only
this machine reaches lets everybody in; the first user, who has to be an administrator,
ends that. What a user may do is
granted with 'ringfence acl'; an administrator may do everything.

The same commands work on a data directory that no server has open, also when nobody
knows the administrator's password any more: 'ringfence user passwd admin --data-dir DIR'.`,
		Example: `  ringfence user add admin --admin              # asks for the password
  ringfence user add billing --new-password-file billing.secret
  ringfence acl grant billing consume topic 'orders*'
  ringfence acl grant billing consume group billing
  ringfence user token create billing --name ci --expires 90d`,
	}
	token := &cobra.Command{Use: "token", Short: "Tokens to log in with in place of a password"}
	token.AddCommand(a.tokenCreateCommand(), a.tokenDeleteCommand(), a.tokenLsCommand())
	cmd.AddCommand(a.userAddCommand(), a.userPasswdCommand(), a.userDeleteCommand(), a.userLsCommand(), a.userDescribeCommand(), token)
	return cmd
}

const passwordHelp = `The password comes from --new-password-file, from the terminal, or from standard input;
it has 12 bytes at least.`

func (a *app) userAddCommand() *cobra.Command {
	var file string
	var admin, without bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a user, who may do nothing until something is granted",
		Long:  "Make a user, who may do nothing until something is granted, unless he is an\nadministrator. " + passwordHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			o := api.UserOptions{}
			if admin {
				o.Grants = []api.Grant{cp.Administrator}
			}
			return a.putUser(cmd.Context(), args[0], file, without, o, "made user %s\n")
		},
	}
	cmd.Flags().StringVar(&file, "new-password-file", "", "file with the password")
	cmd.Flags().BoolVar(&without, "no-password", false, "the user logs in with a token or a client certificate of this common name")
	cmd.Flags().BoolVar(&admin, "admin", false, "grant everything")
	return cmd
}

func (a *app) userPasswdCommand() *cobra.Command {
	var file string
	var without bool
	cmd := &cobra.Command{
		Use:   "passwd [NAME]",
		Short: "Give a user another password; without a name, oneself",
		Long: `Give a user another password, which takes "users" on the cluster. Without a name it is
that of whoever logs in, with --user and the old password, and takes nothing else.
Connections that are logged in stay, and wrong passwords before are forgotten: whoever was
locked out for them can log in again. ` + passwordHelp,
		Example: `  ringfence user passwd billing                  # as an administrator
  ringfence user passwd --user billing --password-file old.secret`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.ownPassword(cmd.Context(), file, without)
			}
			return a.putUser(cmd.Context(), args[0], file, without, api.UserOptions{Replace: true}, "user %s has another password\n")
		},
	}
	cmd.Flags().StringVar(&file, "new-password-file", "", "file with the password")
	cmd.Flags().BoolVar(&without, "no-password", false, "take the password away")
	return cmd
}

// ownPassword changes the password of whoever logs in to the server.
func (a *app) ownPassword(ctx context.Context, file string, without bool) error {
	if without {
		return usageError{errors.New("--no-password: whose? An administrator takes passwords away, by name")}
	}
	addr, err := a.serverAddress()
	if err != nil {
		return err
	}
	var o client.Options
	if addr != "" {
		err = a.credentials(&o)
	}
	if err != nil {
		return err
	}
	if o.User == "" {
		return usageError{errors.New("whose password? Give the user's name, or log in to a server as the user, with --user and the old password")}
	}
	password, err := a.newPassword(ctx, file, o.User)
	if err != nil {
		return err
	}
	return a.withLog(ctx, false, func(ctx context.Context, l api.Log) error {
		if err := l.(remoteLog).ChangePassword(ctx, o.Password, password); err != nil {
			return err
		}
		return a.report(map[string]string{"user": o.User}, func() { a.printf("user %s has another password\n", o.User) })
	})
}

func (a *app) putUser(ctx context.Context, name, file string, without bool, o api.UserOptions, done string) error {
	password := ""
	if without && file != "" {
		return usageError{errors.New("--no-password and --new-password-file: with or without?")}
	}
	if !without {
		var err error
		if password, err = a.newPassword(ctx, file, name); err != nil {
			return err
		}
	}
	return a.withLog(ctx, true, func(ctx context.Context, l api.Log) error {
		if err := l.PutUser(ctx, name, password, o); err != nil {
			return err
		}
		return a.report(map[string]string{"user": name}, func() { a.printf(done, name) })
	})
}

func (a *app) userDeleteCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Forget a user with grants, tokens and quota, also in open connections",
		Long: `Forget a user with grants, tokens and quota; open connections of his may do nothing
more. The last administrator stays while there are other users. After the last user a
server that only this machine reaches lets everybody in again, and another one nobody
until it starts again and makes an administrator.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				if err := a.confirmUser(ctx, l, args[0], yes); err != nil {
					return err
				}
				if err := l.DeleteUser(ctx, args[0]); err != nil {
					return err
				}
				return a.report(map[string]string{"user": args[0]}, func() { a.printf("deleted user %s\n", args[0]) })
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// confirmUser asks for a user's name before all that is his is forgotten.
func (a *app) confirmUser(ctx context.Context, l api.Log, name string, yes bool) error {
	if yes {
		return nil // there may be too many users to look through for nothing
	}
	u, err := userNamed(ctx, l, name)
	if err != nil {
		return err
	}
	last := true
	for other, err := range l.AllUsers(ctx) {
		if err != nil {
			return err
		}
		if last = other.Name == name; !last {
			break
		}
	}
	what := "Delete user %s with %s and %s?"
	if last {
		what += " It is the last user: a server that only this machine reaches lets everybody in then."
	}
	what = fmt.Sprintf(what, u.Name, plural(u.Grants, "grant"), plural(u.Tokens, "token"))
	return a.ask(ctx, question{what, u.Name, "the user's name", "deleted"})
}

type userReport struct {
	User     string    `json:"user"`
	Password bool      `json:"password"`
	Created  time.Time `json:"created"`
	Changed  time.Time `json:"password_changed"`
	Grants   int       `json:"grants"`
	Tokens   int       `json:"tokens"`
	Records  uint64    `json:"quota_records_per_second"` // 0: none
	Bytes    uint64    `json:"quota_bytes_per_second"`

	Wrong int        `json:"wrong_passwords"` // and the rest: as a server remembers
	Until *time.Time `json:"locked_until,omitempty"`
	From  string     `json:"locked_from,omitempty"`
	At    int        `json:"locked_addresses,omitempty"`
}

func userJSON(u api.User) userReport {
	r := userReport{User: u.Name, Password: u.Password, Created: u.Created.UTC(), Changed: u.Changed.UTC(), Grants: u.Grants, Tokens: u.Tokens,
		Records: u.Quota.Records, Bytes: u.Quota.Bytes, Wrong: u.WrongPasswords, From: u.LockedFrom, At: u.LockedAt}
	if u.LockedAt > 0 {
		until := u.LockedUntil.UTC()
		r.Until = &until
	}
	return r
}

func (a *app) userLsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the users",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				head := []string{"USER", "PASSWORD", "GRANTS", "TOKENS", "QUOTA", "CREATED"}
				return list(a, l.AllUsers(ctx), "no users; make one with 'ringfence user add NAME --admin'", head,
					func(u api.User) any { return userJSON(u) },
					func(u api.User) []string {
						has := "yes"
						if !u.Password {
							has = "no"
						}
						return []string{u.Name, has, countText(u.Grants), countText(u.Tokens), quotaText(u.Quota), dateText(u.Created.UnixMilli())}
					})
			})
		},
	}
}

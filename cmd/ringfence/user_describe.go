package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

// userDetail is a user with --json, with all that belongs to him. Like [userReport], but
// with the grants and tokens in place of how many there are.
type userDetail struct {
	userReport
	Grants []grantReport `json:"grants"`
	Tokens []tokenReport `json:"tokens"`
}

func (a *app) userDescribeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe NAME",
		Short: "Show a user with grants, tokens, quota and lockouts",
		Long: `Show a user with grants, tokens and quota and, as the server remembers since it started,
how many wrong passwords were given for the user and where that locks out until when.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				u, err := userNamed(ctx, l, args[0])
				if err != nil {
					return err
				}
				grants, err := l.Grants(ctx, u.Name)
				if err != nil {
					return err
				}
				tokens, err := l.Tokens(ctx, u.Name)
				if err != nil {
					return err
				}
				d := userDetail{userReport: userJSON(u), Grants: []grantReport{}, Tokens: []tokenReport{}}
				for _, g := range grants {
					d.Grants = append(d.Grants, grantJSON(u.Name, g))
				}
				for _, t := range tokens {
					d.Tokens = append(d.Tokens, tokenJSON(t, ""))
				}
				return a.report(d, func() { a.printUser(u, grants, tokens) })
			})
		},
	}
}

func (a *app) printUser(u api.User, grants []api.Grant, tokens []api.Token) {
	password := "has none: logs in with a token, or with a certificate of this common name"
	if u.Password {
		password = "of " + dateText(u.Changed.UnixMilli())
	}
	a.printf("user %s\n  created   %s\n  password  %s\n  quota     %s\n", u.Name, dateText(u.Created.UnixMilli()), password, quotaText(u.Quota))
	switch {
	case u.LockedAt > 0:
		where := u.LockedFrom
		if u.LockedAt > 1 {
			where = fmt.Sprintf("%d addresses, longest at %s", u.LockedAt, u.LockedFrom)
		}
		a.printf("  locked    out at %s until %s: %s; 'ringfence user passwd %s' lifts that\n", where, dateText(u.LockedUntil.UnixMilli()), plural(u.WrongPasswords, "wrong password"), u.Name)
	case u.WrongPasswords > 0:
		a.printf("  logins    %s since the last that was right\n", plural(u.WrongPasswords, "wrong password"))
	}
	if len(grants) == 0 {
		a.printf("  grants    none: may do nothing; see 'ringfence acl grant --help'\n")
	}
	for _, g := range grants {
		a.printf("  grant     %s\n", g)
	}
	for _, t := range tokens {
		a.printf("  token     %s %s, expires %s\n", t.ID, cmp.Or(t.Name, "without a name"), expiryText(t))
	}
}

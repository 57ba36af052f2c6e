package main

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

type tokenReport struct {
	ID      string     `json:"id"`
	User    string     `json:"user"`
	Name    string     `json:"name"`
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires"` // null: never
	Secret  string     `json:"secret,omitempty"`
}

func tokenJSON(t api.Token, secret string) tokenReport {
	r := tokenReport{ID: t.ID, User: t.User, Name: t.Name, Created: t.Created.UTC(), Secret: secret}
	if !t.Expires.IsZero() {
		at := t.Expires.UTC()
		r.Expires = &at
	}
	return r
}

func (a *app) tokenCreateCommand() *cobra.Command {
	var o api.TokenOptions
	var age ageFlag
	cmd := &cobra.Command{
		Use:   "create USER",
		Short: "Make a token; its secret is shown once",
		Long: `Make a token: whoever has its secret is that user. The secret goes to standard output,
once; commands take it from ` + tokenVar + `, programs as a password without a user.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if age > 0 {
				o.Expires = time.Now().Add(time.Duration(age))
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				t, secret, err := l.CreateToken(ctx, args[0], o)
				if err != nil {
					return err
				}
				return a.report(tokenJSON(t, secret), func() {
					a.printf("%s\n", secret)
					fmt.Fprintf(a.err, "ringfence: token %s of user %s; the secret is not shown again\n", t.ID, t.User)
				})
			})
		},
	}
	cmd.Flags().StringVar(&o.Name, "name", "", "what it is for")
	cmd.Flags().Var(&age, "expires", "how long it is good (90d, 12h); without, until it is deleted")
	return cmd
}

func (a *app) tokenDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete ID",
		Short: "Forget a token; what is logged in with it may do nothing more",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				if err := l.DeleteToken(ctx, args[0]); err != nil {
					return err
				}
				return a.report(map[string]string{"id": args[0]}, func() { a.printf("deleted token %s\n", args[0]) })
			})
		},
	}
}

func (a *app) tokenLsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [USER]",
		Short: "List the tokens, of one user or of all",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				none := "no tokens"
				if len(args) > 0 {
					none = fmt.Sprintf("user %s has no tokens", args[0])
				}
				return list(a, ofUsers(ctx, l, args, l.Tokens), none, []string{"TOKEN", "USER", "NAME", "CREATED", "EXPIRES"},
					func(t api.Token) any { return tokenJSON(t, "") },
					func(t api.Token) []string {
						return []string{t.ID, t.User, cmp.Or(t.Name, "-"), dateText(t.Created.UnixMilli()), expiryText(t)}
					})
			})
		},
	}
}

func expiryText(t api.Token) string {
	if t.Expires.IsZero() {
		return "never"
	}
	return dateText(t.Expires.UnixMilli())
}

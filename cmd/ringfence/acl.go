package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) aclCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "acl",
		Short: "What users may do",
		Long: `What users may do. A grant is an operation on a kind of thing, and a pattern: a name,
or with * at its end all names that start so. What nobody granted is not allowed.

  topic    all, create, delete, describe, alter (split, merge, roll, policy), produce, consume
  group    all, consume (take part, and commit its position), describe, delete
  cluster  all, describe and alter (policies), users (with grants, tokens and quotas)

Every operation on a topic or group includes describe. "all cluster" makes an
administrator, who may do everything; whoever has "users cluster" can get there. A grant
that is taken back does not hold for the next request, also of open connections.`,
		Example: `  ringfence acl grant billing consume topic 'orders*'
  ringfence acl grant billing consume group billing
  ringfence acl revoke billing consume topic 'orders*'`,
	}
	cmd.AddCommand(
		a.aclChangeCommand("grant", "Allow a user something", "%s: granted %s\n", api.Log.Grant),
		a.aclChangeCommand("revoke", "Take a grant back", "%s: took back %s\n", api.Log.Revoke),
		a.aclLsCommand(),
	)
	return cmd
}

type grantReport struct {
	User      string `json:"user"`
	Operation string `json:"operation"`
	Kind      string `json:"kind"`
	Pattern   string `json:"pattern"`
}

func (a *app) aclChangeCommand(use, short, done string, change func(api.Log, context.Context, string, api.Grant) error) *cobra.Command {
	return &cobra.Command{
		Use:   use + " USER OPERATION KIND [PATTERN]",
		Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			g, err := parseGrant(args[1:])
			if err != nil {
				return err
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				if err := change(l, ctx, args[0], g); err != nil {
					return err
				}
				return a.report(grantJSON(args[0], g), func() { a.printf(done, args[0], g) })
			})
		},
	}
}

func grantJSON(user string, g api.Grant) grantReport {
	return grantReport{user, g.Op.String(), g.Kind.String(), g.Pattern}
}

// parseGrant reads OPERATION KIND [PATTERN].
func parseGrant(args []string) (g api.Grant, err error) {
	var ok bool
	if g.Kind, ok = cp.KindOf(args[1]); !ok {
		return g, usageError{fmt.Errorf("kind %q: want topic, group or cluster", args[1])}
	}
	g.Op, ok = cp.OperationOf(args[0])
	if !ok {
		var names []string
		for _, op := range g.Kind.Operations() {
			names = append(names, op.String())
		}
		return g, usageError{fmt.Errorf("operation %q on a %s: want one of %s", args[0], g.Kind, strings.Join(names, ", "))}
	}
	switch {
	case len(args) == 3:
		g.Pattern = args[2]
	case g.Kind == cp.OnCluster:
		g.Pattern = "*"
	default:
		return g, usageError{fmt.Errorf("which %s? Give its name, or a pattern that ends in *", g.Kind)}
	}
	return g, nil
}

func (a *app) aclLsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [USER]",
		Short: "List what was granted, to one user or to all",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				return list(a, grantsOf(ctx, l, args), "nothing was granted", []string{"USER", "OPERATION", "KIND", "PATTERN"},
					func(g grantReport) any { return g },
					func(g grantReport) []string { return []string{g.User, g.Operation, g.Kind, g.Pattern} })
			})
		},
	}
}

// grantsOf visits what was granted to the users that were given, or to all.
func grantsOf(ctx context.Context, l api.Log, given []string) iter.Seq2[grantReport, error] {
	return ofUsers(ctx, l, given, func(ctx context.Context, user string) (out []grantReport, err error) {
		list, err := l.Grants(ctx, user)
		for _, g := range list {
			out = append(out, grantJSON(user, g))
		}
		return out, err
	})
}

// ofUsers visits what each of the users has that were given, or of all.
func ofUsers[T any](ctx context.Context, l api.Log, given []string, of func(context.Context, string) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for user, err := range userNames(ctx, l, given) {
			var list []T
			if err == nil {
				list, err = of(ctx, user)
			}
			if errors.Is(err, engine.ErrNoSuchUser) && len(given) == 0 {
				continue // deleted meanwhile
			}
			if err != nil {
				yield(*new(T), err)
				return
			}
			for _, item := range list {
				if !yield(item, nil) {
					return
				}
			}
		}
	}
}

func userNames(ctx context.Context, l api.Log, given []string) iter.Seq2[string, error] {
	if len(given) > 0 {
		return api.Listed(given, nil)
	}
	return func(yield func(string, error) bool) {
		for u, err := range l.AllUsers(ctx) {
			if !yield(u.Name, err) {
				return
			}
		}
	}
}

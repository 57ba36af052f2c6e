package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) quotaCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "quota", Short: "How much users may produce"}
	cmd.AddCommand(a.quotaSetCommand(), a.quotaLsCommand(), a.quotaDeleteCommand())
	return cmd
}

func (a *app) quotaSetCommand() *cobra.Command {
	var records uint64
	var bytes sizeFlag
	cmd := &cobra.Command{
		Use:   "set USER",
		Short: "Bound what a user may produce in a second",
		Long: `Bound what a user may produce in a second through one server, in records and in bytes of
batches as they are sent; 0 is no bound, and what is not given stays. A producer over
the quota is held up, and goes on by itself. A batch with more than a second's quota is
taken, and the next one waits for as many seconds. Records that are stored already, as
of a run that is repeated, count as well.`,
		Example: "  ringfence quota set billing --records 10000 --bytes 20MiB",
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("records") && !cmd.Flags().Changed("bytes") {
				return usageError{errors.New("which quota? Give --records or --bytes")}
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				u, err := userNamed(ctx, l, args[0])
				if err != nil {
					return err
				}
				q := u.Quota
				if cmd.Flags().Changed("records") {
					q.Records = records
				}
				if cmd.Flags().Changed("bytes") {
					q.Bytes = uint64(bytes)
				}
				if err := l.SetQuota(ctx, args[0], q); err != nil {
					return err
				}
				return a.report(quotaReport{args[0], q.Records, q.Bytes}, func() { a.printf("user %s: %s\n", args[0], quotaText(q)) })
			})
		},
	}
	cmd.Flags().Uint64Var(&records, "records", 0, "records in a second")
	cmd.Flags().Var(&bytes, "bytes", "bytes in a second (20MiB)")
	return cmd
}

type quotaReport struct {
	User    string `json:"user"`
	Records uint64 `json:"records_per_second"` // 0: no bound
	Bytes   uint64 `json:"bytes_per_second"`
}

func (a *app) quotaLsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls [USER]",
		Short: "List the quotas, of one user or of all who have one",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				return list(a, quotasOf(ctx, l, args), "no quotas; set one with 'ringfence quota set USER'", []string{"USER", "RECORDS/S", "BYTES/S"},
					func(u api.User) any { return quotaReport{u.Name, u.Quota.Records, u.Quota.Bytes} },
					func(u api.User) []string {
						records, bytes := "-", "-"
						if u.Quota.Records > 0 {
							records = countText(u.Quota.Records)
						}
						if u.Quota.Bytes > 0 {
							bytes = bytesText(u.Quota.Bytes)
						}
						return []string{u.Name, records, bytes}
					})
			})
		},
	}
}

// quotasOf visits the users who have a quota, or the one that was given.
func quotasOf(ctx context.Context, l api.Log, given []string) iter.Seq2[api.User, error] {
	return func(yield func(api.User, error) bool) {
		if len(given) > 0 {
			yield(userNamed(ctx, l, given[0]))
			return
		}
		for u, err := range l.AllUsers(ctx) {
			if err == nil && u.Quota == (api.Quota{}) {
				continue
			}
			if !yield(u, err) {
				return
			}
		}
	}
}

func (a *app) quotaDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete USER",
		Short: "Take a user's quota away: what he produces has no bound then",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				if err := l.SetQuota(ctx, args[0], api.Quota{}); err != nil {
					return err
				}
				return a.report(quotaReport{User: args[0]}, func() { a.printf("user %s: %s\n", args[0], quotaText(api.Quota{})) })
			})
		},
	}
}

// userNamed is what is known of a user.
func userNamed(ctx context.Context, l api.Log, name string) (api.User, error) {
	if err := api.CheckUser(name); err != nil {
		return api.User{}, fmt.Errorf("user %q: %w", name, err)
	}
	for u, err := range l.AllUsers(ctx) {
		if err != nil || u.Name == name {
			return u, err
		}
	}
	return api.User{}, fmt.Errorf("user %q: %w", name, engine.ErrNoSuchUser)
}

// quotaText is a quota as people read it.
func quotaText(q api.Quota) string {
	var parts []string
	if q.Records > 0 {
		parts = append(parts, countText(q.Records)+" records/s")
	}
	if q.Bytes > 0 {
		parts = append(parts, bytesText(q.Bytes)+"/s")
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

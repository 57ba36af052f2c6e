package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) quotaCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "quota", Short: "How much users may produce"}
	cmd.AddCommand(a.quotaSetCommand())
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
the quota is held up. A batch with more than a second's quota is refused: quotas must be
larger than batches are.`,
		Example: "  ringfence quota set billing --records 10000 --bytes 20MiB",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("records") && !cmd.Flags().Changed("bytes") {
				return usageError{errors.New("which quota? Give --records or --bytes")}
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				q, err := quotaOf(ctx, l, args[0])
				if err != nil {
					return err
				}
				if cmd.Flags().Changed("records") {
					q.Records = records
				}
				if cmd.Flags().Changed("bytes") {
					q.Bytes = uint64(bytes)
				}
				if err := l.SetQuota(ctx, args[0], q); err != nil {
					return err
				}
				return a.report(map[string]any{"user": args[0], "records_per_second": q.Records, "bytes_per_second": q.Bytes}, func() {
					a.printf("user %s: %s\n", args[0], quotaText(q))
				})
			})
		},
	}
	cmd.Flags().Uint64Var(&records, "records", 0, "records in a second")
	cmd.Flags().Var(&bytes, "bytes", "bytes in a second (20MiB)")
	return cmd
}

// quotaOf is the quota of a user.
func quotaOf(ctx context.Context, l api.Log, name string) (api.Quota, error) {
	for u, err := range l.AllUsers(ctx) {
		if err != nil || u.Name == name {
			return u.Quota, err
		}
	}
	return api.Quota{}, fmt.Errorf("user %q: %w", name, engine.ErrNoSuchUser)
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

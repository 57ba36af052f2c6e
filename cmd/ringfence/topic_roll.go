package main

import (
	"context"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicRollCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "roll TOPIC",
		Short: "Close the segments that are being written",
		Long: `Close the segments that a server writes for a topic; the next records open new ones.
Only a closed segment expires, and only of a closed one a loss can be accepted.
On a data directory that no process had open there is none to close: whatever opens it
does that.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				n, err := l.Roll(ctx, args[0])
				if err != nil {
					return err
				}
				return a.report(map[string]int{"closed": n}, func() { a.printf("closed %s of %s\n", plural(n, "segment"), args[0]) })
			})
		},
	}
}

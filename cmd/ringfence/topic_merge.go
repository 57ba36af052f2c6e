package main

import (
	"context"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicMergeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "merge TOPIC RANGE RANGE",
		Short: "Merge two neighbouring ranges into one",
		Long:  `Close two ranges that are the halves of one block of keys and open one in their place.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			x, err := parseRange(args[1])
			if err != nil {
				return err
			}
			y, err := parseRange(args[2])
			if err != nil {
				return err
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				child, err := l.MergeRanges(ctx, args[0], x, y)
				if err != nil {
					return err
				}
				return a.report(map[string]uint32{"range": child}, func() {
					a.printf("ranges %d and %d of %s are now range %d\n", x, y, args[0], child)
				})
			})
		},
	}
}

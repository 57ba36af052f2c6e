package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicSplitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "split TOPIC RANGE",
		Short: "Split a range into two halves",
		Long: `Close a range and open two in its place, each with half of its keys. Records of a
key keep their order: consumers finish the old range before its halves.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			seq, err := parseRange(args[1])
			if err != nil {
				return err
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				left, right, err := l.SplitRange(ctx, args[0], seq)
				if err != nil {
					return err
				}
				return a.report(map[string]uint32{"left": left, "right": right}, func() {
					a.printf("range %d of %s is now ranges %d and %d\n", seq, args[0], left, right)
				})
			})
		},
	}
}

func parseRange(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, usageError{fmt.Errorf("range %q: want its number, as 'ringfence topic describe' shows it", text)}
	}
	return uint32(n), nil
}

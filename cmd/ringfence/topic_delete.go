package main

import (
	"context"
	"fmt"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicDeleteCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete TOPIC",
		Short: "Delete a topic with all its records",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				d, err := l.Describe(ctx, args[0])
				if err != nil {
					return err
				}
				if !yes {
					what := fmt.Sprintf("Delete topic %s with %s (%s)?", d.Name, plural(d.Records, "record"), bytesText(d.Bytes))
					if err := a.ask(ctx, question{what, d.Name, "the topic's name", "deleted"}); err != nil {
						return err
					}
				}
				if err := l.DeleteTopic(ctx, args[0]); err != nil {
					return err
				}
				return a.report(topicJSON(d.TopicInfo), func() {
					a.printf("deleted topic %s with %s\n", d.Name, plural(d.Records, "record"))
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

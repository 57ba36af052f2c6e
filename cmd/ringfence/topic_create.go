package main

import (
	"context"
	"fmt"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicCreateCommand() *cobra.Command {
	var o engine.TopicOptions
	cmd := &cobra.Command{
		Use:   "create TOPIC",
		Short: "Create a topic, and the data directory if need be",
		Long: `Create a topic with one range over all keys. It can be split into at most 2^bits
ranges, as often as its load asks for.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Bits < 1 || o.Bits > 32 {
				return usageError{fmt.Errorf("--bits is %d: want 1 to 32", o.Bits)}
			}
			// A policy exists only where there is a directory already.
			return a.withLog(cmd.Context(), o.Policy == "", func(ctx context.Context, l api.Log) error {
				if err := l.CreateTopic(ctx, args[0], o); err != nil {
					return err
				}
				d, err := l.Describe(ctx, args[0])
				if err != nil {
					return err
				}
				return a.report(topicJSON(d.TopicInfo), func() { a.printf("created topic %s (%s)\n", d.Name, d.ID) })
			})
		},
	}
	cmd.Flags().Uint8Var(&o.Bits, "bits", 8, "the keyspace has 2^bits positions, so at most that many ranges (1 to 32)")
	cmd.Flags().StringVar(&o.Policy, "policy", "", "bind the topic to this policy")
	return cmd
}

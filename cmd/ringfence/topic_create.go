package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicCreateCommand() *cobra.Command {
	var o engine.TopicOptions
	var ifMissing bool
	cmd := &cobra.Command{
		Use:   "create TOPIC",
		Short: "Create a topic, and the data directory if need be",
		Long: `Create a topic with one range over all keys. It can be split into at most 2^bits
ranges, as often as its load asks for.

A topic that exists already ends with exit code 4, or with --if-not-exists with 0: it is
left as it is, whatever --bits and --policy say, and the report shows what it has.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.Bits < 1 || o.Bits > 32 {
				return usageError{fmt.Errorf("--bits is %d: want 1 to 32", o.Bits)}
			}
			// A policy exists only where there is a directory already.
			return a.withLog(cmd.Context(), o.Policy == "", func(ctx context.Context, l api.Log) error {
				err := l.CreateTopic(ctx, args[0], o)
				existed := ifMissing && errors.Is(err, engine.ErrTopicExists)
				if err != nil && !existed {
					return err
				}
				d, err := l.Describe(ctx, args[0])
				if err != nil {
					return err
				}
				return a.report(createReport{topicReport: topicJSON(d.TopicInfo), Existed: existed}, func() {
					if existed {
						a.printf("topic %s (%s) exists already, with %s and %s; it was left as it is\n", d.Name, d.ID, plural(d.Bits, "bit"), boundText(d.TopicInfo))
						return
					}
					a.printf("created topic %s (%s)\n", d.Name, d.ID)
				})
			})
		},
	}
	cmd.Flags().Uint8Var(&o.Bits, "bits", 8, "the keyspace has 2^bits positions, so at most that many ranges (1 to 32)")
	cmd.Flags().StringVar(&o.Policy, "policy", "", "bind the topic to this policy")
	cmd.Flags().BoolVar(&ifMissing, "if-not-exists", false, "leave a topic that exists already as it is, and end with exit code 0")
	return cmd
}

// createReport is a topic that is there now, and whether it was before.
type createReport struct {
	topicReport
	Existed bool `json:"existed"`
}

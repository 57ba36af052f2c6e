package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) groupResetCommand() *cobra.Command {
	var to string
	var yes bool
	cmd := &cobra.Command{
		Use:   "reset TOPIC GROUP --to PLACE",
		Short: "Move a group to another place in its topic",
		Long: `Move a group to another place, also back. --to is start, end, a cursor, a time (RFC
3339, or milliseconds since 1970), or how long ago (90s, 15m, 36h): the first record
of each range that is not older. A time that no record has reached is refused, and so
is a cursor of another topic. Before anything is changed the command says how many
records the group skips and how many it reads again, and asks.`,
		Example: `  ringfence group reset logs billing --to start
  ringfence group reset logs billing --to 2024-05-01T12:00:00Z --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usageError{errors.New("where to? Give --to start, end, a cursor, a time, or how long ago")}
			}
			from, err := parseFrom("--to", to, "", time.Now())
			if err != nil {
				return err
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				return a.resetGroup(ctx, l, args[0], args[1], to, from, yes)
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "start, end, a cursor, a time, or how long ago (15m)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// resetReport is a group that was moved, with --json.
type resetReport struct {
	Before  groupReport `json:"before"`
	After   groupReport `json:"after"`
	Skipped uint64      `json:"skipped"` // records that it does not read
	Again   uint64      `json:"again"`   // records that it reads again
}

func (a *app) resetGroup(ctx context.Context, l api.Log, topic, group, to string, from engine.From, yes bool) (err error) {
	before, err := l.DescribeGroup(ctx, topic, group)
	if err != nil {
		return err
	}
	c, err := l.NewConsumer(engine.ConsumerOptions{Topic: topic, Group: group, From: from})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	places, err := c.Ranges()
	if err != nil {
		return err
	}
	if from.Kind == api.AtTime && !slices.ContainsFunc(places, func(p engine.GroupRange) bool { return p.Lag > 0 }) {
		return usageError{fmt.Errorf("no record of topic %s is of %s or later: --to end goes behind the last", topic, to)}
	}
	r := resetReport{Before: groupJSON(topic, before)}
	r.Skipped, r.Again = moved(before.Ranges, places)
	what := fmt.Sprintf("Move group %s of topic %s to %s: it skips %s and reads %s again?", group, topic, abridge(to),
		plural(r.Skipped, "record"), plural(r.Again, "record"))
	if err := a.confirmGroup(ctx, yes, group, what); err != nil {
		return err
	}
	if err := c.Reset(ctx); err != nil {
		return err
	}
	after, err := l.DescribeGroup(ctx, topic, group)
	if err != nil {
		return err
	}
	r.After = groupJSON(topic, after)
	return a.report(r, func() {
		a.printf("moved: skips %s, reads %s again; it was at cursor %s\n", plural(r.Skipped, "record"), plural(r.Again, "record"), r.Before.Cursor)
		a.printGroup(r.After)
	})
}

// moved is how many records a reader skips and how many it reads again when it goes
// from one place to another. A range that is not listed is finished.
func moved(before, after []engine.GroupRange) (skipped, again uint64) {
	lag := map[uint32]uint64{}
	for _, r := range before {
		lag[r.Range] = r.Lag
	}
	for _, r := range after {
		have := lag[r.Range]
		delete(lag, r.Range)
		skipped += have - min(have, r.Lag)
		again += r.Lag - min(have, r.Lag)
	}
	for _, have := range lag {
		skipped += have
	}
	return skipped, again
}

// abridge is a place that is short enough for a question.
func abridge(place string) string {
	const most = 40
	if len(place) <= most {
		return place
	}
	return place[:most] + "..."
}

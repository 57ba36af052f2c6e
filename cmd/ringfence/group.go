package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) groupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "List, describe, move and delete the positions of consumer groups",
		Long: `List, describe, move and delete the positions of consumer groups. A group is there
once 'ringfence consume --group', or a program, has committed its position in a topic
or taken part in it as a member. A group is not moved or deleted while it has members.`,
	}
	cmd.AddCommand(a.groupListCommand(), a.groupDescribeCommand(), a.groupResetCommand(), a.groupDeleteCommand())
	return cmd
}

func (a *app) groupListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list [TOPIC]",
		Short: "List the groups of a topic, or of all topics",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				var unknown error // a damaged topic does not hide the others
				head := []string{"TOPIC", "GROUP", "LAG", "BEHIND"}
				err := list(a, groupsOf(ctx, l, args, &unknown), a.none("groups")+"; 'ringfence consume TOPIC --group NAME' makes one", head,
					func(g groupReport) any { return g },
					func(g groupReport) []string {
						return []string{g.Topic, g.Group, countText(g.Lag), behindText(g.Lag, g.Behind)}
					})
				return errors.Join(err, unknown)
			})
		},
	}
}

// groupsOf visits the groups of one topic, or of all. What is damaged is told in unknown,
// of one topic that is.
func groupsOf(ctx context.Context, l api.Log, topics []string, unknown *error) iter.Seq2[groupReport, error] {
	return func(yield func(groupReport, error) bool) {
		for topic, err := range topicNames(ctx, l, topics) {
			if err != nil {
				yield(groupReport{}, err)
				return
			}
			for name, err := range l.AllGroups(ctx, topic) {
				var g engine.GroupInfo
				if err == nil {
					g, err = l.DescribeGroup(ctx, topic, name)
				}
				if errors.Is(err, engine.ErrDamaged) {
					*unknown, err = err, nil
				}
				if !yield(groupJSON(topic, g), err) || err != nil {
					return
				}
			}
		}
	}
}

// topicNames visits the names that were given, or all that there are.
func topicNames(ctx context.Context, l api.Log, given []string) iter.Seq2[string, error] {
	if len(given) > 0 {
		return api.Listed(given, nil)
	}
	return func(yield func(string, error) bool) {
		for t, err := range l.AllTopics(ctx) {
			if !yield(t.Name, err) {
				return
			}
		}
	}
}

func (a *app) groupDescribeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe TOPIC GROUP",
		Short: "Show where a group is and how far it is behind",
		Long: `Show, for each range that a group has not finished, the next offset it reads, where
the range ends, how many records lie between, and how long the oldest of those has
waited. Records that retention removed do not count. Through a server it shows the
group's members, too, and who reads which range.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				info, err := l.DescribeGroup(ctx, args[0], args[1])
				if err != nil && !errors.Is(err, engine.ErrDamaged) {
					return err
				}
				g := groupJSON(args[0], info)
				return errors.Join(a.report(g, func() { a.printGroup(g) }), err)
			})
		},
	}
}

func (a *app) groupDeleteCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete TOPIC GROUP",
		Short: "Forget a group's position; a group of that name begins at the start",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				info, err := l.DescribeGroup(ctx, args[0], args[1])
				if err != nil && !errors.Is(err, engine.ErrDamaged) {
					return err
				}
				if err := a.confirmGroup(ctx, yes, info.Name, fmt.Sprintf("Forget where group %s of topic %s is?", info.Name, args[0])); err != nil {
					return err
				}
				if err := l.DeleteGroup(ctx, args[0], info.Name); err != nil {
					return err
				}
				return a.report(groupJSON(args[0], info), func() {
					a.printf("deleted group %s of topic %s; it was at cursor %s\n", info.Name, args[0], info.Cursor)
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// confirmGroup asks for a group's name before something is done to it.
func (a *app) confirmGroup(ctx context.Context, yes bool, name, what string) error {
	if yes {
		return nil
	}
	return a.ask(ctx, question{what, name, "the group's name", "changed"})
}

// groupReport is a group with --json.
type groupReport struct {
	Group  string             `json:"group"`
	Topic  string             `json:"topic"`
	Lag    uint64             `json:"lag"`       // records
	Behind *int64             `json:"behind_ms"` // age of the oldest unread record; null: it cannot be read
	Cursor string             `json:"cursor"`
	Ranges []groupRangeReport `json:"ranges"`

	// Of a group with members, through a server alone.
	Members    []string `json:"members,omitempty"`
	Generation uint64   `json:"generation,omitempty"`
}

type groupRangeReport struct {
	Range  uint32 `json:"range"`
	Offset uint64 `json:"offset"` // the next one the group reads
	End    uint64 `json:"end"`
	Lag    uint64 `json:"lag"`
	Behind *int64 `json:"behind_ms"`
	Member string `json:"member,omitempty"` // who reads it
}

func groupJSON(topic string, g engine.GroupInfo) groupReport {
	r := groupReport{
		Group: g.Name, Topic: topic, Lag: g.Lag, Cursor: g.Cursor, Ranges: groupRanges(g.Ranges),
		Members: g.Members, Generation: g.Generation,
	}
	r.Behind = new(int64)
	for _, p := range r.Ranges {
		switch {
		case p.Behind == nil:
			r.Behind = nil
			return r
		case *p.Behind > *r.Behind:
			r.Behind = p.Behind
		}
	}
	return r
}

func groupRanges(list []engine.GroupRange) []groupRangeReport {
	out := make([]groupRangeReport, 0, len(list))
	for _, p := range list {
		r := groupRangeReport{Range: p.Range, Offset: p.Offset, End: p.End, Lag: p.Lag, Member: p.Member}
		if ms := p.Behind.Milliseconds(); p.Behind >= 0 {
			r.Behind = &ms
		}
		out = append(out, r)
	}
	return out
}

func (a *app) printGroup(g groupReport) {
	a.printf("group %s of topic %s: lag %s, behind %s\n", g.Group, g.Topic, plural(g.Lag, "record"), behindText(g.Lag, g.Behind))
	if len(g.Members) > 0 {
		a.printf("members %s\n", strings.Join(g.Members, ", "))
	}
	a.printf("cursor %s\n\n", g.Cursor)
	rows := [][]string{{"RANGE", "UNREAD [FIRST,NEXT)", "LAG", "BEHIND"}}
	for _, r := range g.Ranges {
		rows = append(rows, []string{fmt.Sprint(r.Range), offsetsText(r.Offset, r.End), countText(r.Lag), behindText(r.Lag, r.Behind)})
	}
	if len(g.Members) > 0 {
		rows[0] = append(rows[0], "MEMBER")
		for i, r := range g.Ranges {
			rows[i+1] = append(rows[i+1], cmp.Or(r.Member, "-"))
		}
	}
	a.table(rows...)
}

// behindText is how long the oldest unread record has waited.
func behindText(lag uint64, ms *int64) string {
	switch {
	case lag == 0:
		return "-"
	case ms == nil:
		return "unknown"
	}
	return timeText(time.Duration(*ms) * time.Millisecond)
}

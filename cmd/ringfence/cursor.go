package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) cursorCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cursor", Short: "Look into cursors"}
	cmd.AddCommand(a.cursorInspectCommand())
	return cmd
}

// cursorReport is what a cursor says.
type cursorReport struct {
	Topic  string        `json:"topic_id"`
	Ranges []cursorRange `json:"ranges"`
}

type cursorRange struct {
	Range uint32 `json:"range"`
	Next  uint64 `json:"next_offset"`
	Mark  uint32 `json:"mark,omitempty"` // of the segment of the record before; 0 not known
}

func (a *app) cursorInspectCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "inspect CURSOR",
		Short: "Show which topic a cursor is of and where it stands",
		Long: `Show which topic a cursor is of, by the identity that 'topic describe' shows, and the
next offset that it reads of each range that is not finished. Programs keep cursors
and hand them back, and do not look into them: what is in one may change.`,
		RunE: func(_ *cobra.Command, args []string) error {
			topic, err := api.TopicOfCursor(args[0])
			if err != nil {
				return err
			}
			pos, marks, err := api.DecodeCursor(topic, args[0])
			if err != nil {
				return err
			}
			r := cursorReport{Topic: topic.String(), Ranges: []cursorRange{}}
			for id, next := range pos {
				r.Ranges = append(r.Ranges, cursorRange{Range: id.Seq, Next: next, Mark: marks[id]})
			}
			slices.SortFunc(r.Ranges, func(a, b cursorRange) int { return cmp.Compare(a.Range, b.Range) })
			return a.report(r, func() {
				a.printf("of topic %s\n\n", r.Topic)
				rows := [][]string{{"RANGE", "NEXT OFFSET"}}
				for _, c := range r.Ranges {
					rows = append(rows, []string{fmt.Sprint(c.Range), fmt.Sprint(c.Next)})
				}
				a.table(rows...)
			})
		},
	}
}

package main

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicLsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the topics",
		Long: `List the topics. DAMAGE counts the segments of which records are known to be
unreadable, with no loss accepted, and the files that were set aside in
DATA_DIR/log/quarantine because the metadata does not know them; 'topic describe' says
more, and 'segment verify' finds what nobody has read yet.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				list, err := l.Topics(ctx)
				if err != nil {
					return err
				}
				out := make([]topicReport, 0, len(list)) // an empty list is [], not null
				for _, t := range list {
					out = append(out, topicJSON(t))
				}
				return a.report(out, func() { a.printTopics(list) })
			})
		},
	}
}

// topicReport is a topic with --json.
type topicReport struct {
	Name     string    `json:"name"`
	ID       string    `json:"id"`
	Bits     uint8     `json:"bits"`
	Policy   string    `json:"policy,omitempty"`
	Created  time.Time `json:"created"`
	Ranges   int       `json:"active_ranges"`
	Segments int       `json:"segments"`
	Records  uint64    `json:"records"`
	Bytes    uint64    `json:"bytes"`
	Damaged  int       `json:"damaged_segments"`
	SetAside int       `json:"files_set_aside"`
}

func topicJSON(t engine.TopicInfo) topicReport {
	return topicReport{Name: t.Name, ID: t.ID, Bits: t.Bits, Policy: t.Policy, Created: t.Created.UTC(),
		Ranges: t.Ranges, Segments: t.Segments, Records: t.Records, Bytes: t.Bytes, Damaged: t.Damaged, SetAside: t.SetAside}
}

func (a *app) printTopics(list []engine.TopicInfo) {
	if len(list) == 0 {
		a.printf("no topics; create one with 'ringfence topic create NAME'\n")
		return
	}
	rows := [][]string{{"TOPIC", "RANGES", "SEGMENTS", "RECORDS", "SIZE", "POLICY", "CREATED", "DAMAGE"}}
	for _, t := range list {
		rows = append(rows, []string{t.Name, countText(t.Ranges), countText(t.Segments), countText(t.Records), bytesText(t.Bytes),
			cmp.Or(t.Policy, "-"), dateText(t.Created.UnixMilli()), damageText(t)})
	}
	a.table(rows...)
}

// damageText is what is wrong with a topic, in few words.
func damageText(t engine.TopicInfo) string {
	var words []string
	if t.Damaged > 0 {
		words = append(words, plural(t.Damaged, "segment"))
	}
	if t.SetAside > 0 {
		words = append(words, plural(t.SetAside, "file")+" set aside")
	}
	return cmp.Or(strings.Join(words, ", "), "-")
}

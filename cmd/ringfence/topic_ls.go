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
unreadable, with no loss accepted, also those where a read met damage since the data
directory was opened, and the files that were set aside in
DATA_DIR/log/quarantine because the metadata does not know them; 'topic describe' says
more, and 'segment verify' finds what nobody has read yet.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				head := []string{"TOPIC", "RANGES", "SEGMENTS", "RECORDS", "SIZE", "POLICY", "CREATED", "DAMAGE"}
				return list(a, l.AllTopics(ctx), a.none("topics")+"; create one with 'ringfence topic create NAME'", head,
					func(t engine.TopicInfo) any { return topicJSON(t) }, topicRow)
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
	Missing  bool      `json:"policy_missing,omitempty"` // it is not defined: nothing expires
	Created  time.Time `json:"created"`
	Ranges   int       `json:"active_ranges"`
	Segments int       `json:"segments"`
	Records  uint64    `json:"records"`
	Bytes    uint64    `json:"bytes"`
	Damaged  int       `json:"damaged_segments"`
	SetAside int       `json:"files_set_aside"`
}

func topicJSON(t engine.TopicInfo) topicReport {
	return topicReport{Name: t.Name, ID: t.ID, Bits: t.Bits, Policy: t.Policy, Missing: t.PolicyMissing, Created: t.Created.UTC(),
		Ranges: t.Ranges, Segments: t.Segments, Records: t.Records, Bytes: t.Bytes, Damaged: t.Damaged, SetAside: t.SetAside}
}

func topicRow(t engine.TopicInfo) []string {
	return []string{t.Name, countText(t.Ranges), countText(t.Segments), countText(t.Records), bytesText(t.Bytes),
		policyText(t), dateText(t.Created.UnixMilli()), damageText(t)}
}

// policyText is what a topic is bound to.
func policyText(t engine.TopicInfo) string {
	if t.PolicyMissing {
		return t.Policy + " (not defined)"
	}
	return cmp.Or(t.Policy, "-")
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

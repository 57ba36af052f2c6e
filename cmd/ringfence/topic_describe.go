package main

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicDescribeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe TOPIC",
		Short: "Show a topic's ranges, segments and groups",
		Long: `Show a topic's ranges, segments and groups. Offsets and keys are given as
[FIRST,NEXT): the first one that is in it, and the first one behind it.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				d, err := l.Describe(ctx, args[0])
				if err != nil {
					return err
				}
				return a.report(detailJSON(d), func() { a.printTopic(d) })
			})
		},
	}
}

// detailReport is a topic with its ranges, with --json.
type detailReport struct {
	topicReport
	Groups []string      `json:"groups"`
	All    []rangeReport `json:"ranges"`
}

type rangeReport struct {
	Range      uint32          `json:"range"`
	Start      uint64          `json:"start"`
	End        uint64          `json:"end"`
	Active     bool            `json:"active"`
	Parents    []uint32        `json:"parents,omitempty"`
	NextOffset uint64          `json:"next_offset"`
	Segments   []segmentReport `json:"segments"`
}

type segmentReport struct {
	Segment uint32     `json:"segment"`
	Active  bool       `json:"active"`
	Start   uint64     `json:"start"`
	Records uint64     `json:"records"`
	Bytes   uint64     `json:"bytes"`
	Sealed  *time.Time `json:"sealed,omitempty"`
	File    string     `json:"file"`
	Missing bool       `json:"missing,omitempty"`
	Damage  string     `json:"damage,omitempty"`
	Lost    uint64     `json:"lost,omitempty"`     // records that cannot be read
	GivenUp uint64     `json:"given_up,omitempty"` // of them, those whose loss was accepted
}

func detailJSON(d engine.TopicDetail) detailReport {
	r := detailReport{topicReport: topicJSON(d.TopicInfo), Groups: append([]string{}, d.Groups...), All: []rangeReport{}}
	for _, g := range d.AllRanges {
		rr := rangeReport{Range: g.Seq, Start: g.Start, End: g.End, Active: g.Active, Parents: g.Parents, NextOffset: g.NextOffset, Segments: []segmentReport{}}
		for _, s := range g.Segments {
			sr := segmentReport{Segment: s.Seq, Active: s.Active, Start: s.Start, Records: s.Records, Bytes: s.Bytes, File: s.File, Missing: s.Missing,
				Damage: s.Damage, Lost: s.Lost, GivenUp: s.GivenUp}
			if !s.SealedAt.IsZero() {
				at := s.SealedAt.UTC()
				sr.Sealed = &at
			}
			rr.Segments = append(rr.Segments, sr)
		}
		r.All = append(r.All, rr)
	}
	return r
}

// boundText is the policy of a topic in a sentence.
func boundText(t engine.TopicInfo) string {
	if t.Policy == "" {
		return "no policy"
	}
	return "policy " + t.Policy
}

func (a *app) printTopic(d engine.TopicDetail) {
	policy := boundText(d.TopicInfo)
	if d.PolicyMissing {
		policy += ", which is not defined: nothing expires until it is, or the topic is bound elsewhere"
	}
	a.printf("topic %s (%s), created %s, %s\n", d.Name, d.ID, dateText(d.Created.UnixMilli()), policy)
	a.printf("%s in %s, %s; groups: %s\n\n", plural(d.Records, "record"), plural(d.Segments, "segment"), bytesText(d.Bytes),
		cmp.Or(strings.Join(d.Groups, ", "), "none"))
	rows := [][]string{{"RANGE", "KEYS [FIRST,NEXT)", "STATE", "SEGMENT", "OFFSETS [FIRST,NEXT)", "SIZE", "FILE"}}
	for _, r := range d.AllRanges {
		state := "active"
		if !r.Active {
			state = "sealed"
		}
		if len(r.Parents) > 0 {
			state += " (from " + strings.Trim(fmt.Sprint(r.Parents), "[]") + ")"
		}
		head := []string{fmt.Sprint(r.Seq), keysText(r.Start, r.End), state}
		if len(r.Segments) == 0 {
			rows = append(rows, append(head, "-", offsetsText(r.NextOffset, r.NextOffset), "-", "-"))
		}
		for _, s := range r.Segments {
			rows = append(rows, append(head, segmentText(s), offsetsText(s.Start, s.Start+s.Records), bytesText(s.Bytes), fileText(s)))
			head = []string{"", "", ""}
		}
	}
	a.table(rows...)
	a.printDamage(d)
}

// printDamage says what is known to be wrong with a topic.
func (a *app) printDamage(d engine.TopicDetail) {
	for _, r := range d.AllRanges {
		for _, s := range r.Segments {
			if s.Damage == "" {
				continue
			}
			a.printf("\nsegment %d of range %d: %s\n", s.Seq, r.Seq, s.Damage)
			if s.Lost > s.GivenUp {
				a.printf("  reads of %s fail; put the file back from a copy, or see 'ringfence segment accept-loss --help'\n", plural(s.Lost-s.GivenUp, "record"))
			}
		}
	}
	if d.SetAside > 0 {
		a.printf("\n%s of this topic in log/quarantine: the metadata does not know them\n", plural(d.SetAside, "file"))
	}
}

// keysText is a slice of the keyspace as fractions of it.
func keysText(start, end uint64) string {
	const all = 1 << 32
	return fmt.Sprintf("[%.4g%%,%.4g%%)", 100*float64(start)/all, 100*float64(end)/all)
}

func segmentText(s engine.SegmentInfo) string {
	if s.Active {
		return fmt.Sprintf("%d, open", s.Seq)
	}
	return fmt.Sprint(s.Seq)
}

// offsetsText is how offsets are shown everywhere: the first, and the one behind the last.
func offsetsText(first, next uint64) string { return fmt.Sprintf("[%d,%d)", first, next) }

func fileText(s engine.SegmentInfo) string {
	if s.Missing {
		return "LOST " + s.File
	}
	return cmp.Or(s.File, "-")
}

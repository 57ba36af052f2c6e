package server

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// longest is a name of the most bytes that a name has, one for each number.
func longest(n int) string { return fmt.Sprintf("%08d", n) + strings.Repeat("n", cp.MaxName-8) }

// fits fails where an answer is longer than a message may be.
func fits(t *testing.T, key wire.Key, m wire.Message) {
	t.Helper()
	var enc wire.Encoder
	h, err := wire.ParseHead(enc.Frame(key, wire.FlagReply, 1, m, 0), wire.MaxFrame)
	if err != nil || h.Flags&wire.FlagFailed != 0 {
		t.Fatalf("a page of %s does not fit a message: %+v, %v", key, h, err)
	}
}

// The pages of a list are the list, whatever is left out, and the longest fits a message.
func TestPagesOfNames(t *testing.T) {
	var all []string
	list := map[string]api.Policy{}
	for i := range 3456 {
		all = append(all, longest(i))
		list[longest(i)] = api.Policy{MaxAge: api.Limit(1 << 40), MaxBytes: api.Limit(1 << 50), SegmentMaxAge: api.Limit(1 << 40), SegmentMaxBytes: api.Unlimited()}
	}
	var got []string
	pages := 0
	for after, more := "", true; more; pages++ {
		p := policies(list, &wire.ListPolicies{After: after})
		fits(t, wire.KeyListPolicies, p)
		for _, one := range p.Policies {
			got = append(got, one.Name)
		}
		after, more = got[len(got)-1], p.More
	}
	if pages != 4 || !slices.Equal(got, all) {
		t.Errorf("%d policies on %d pages, want %d on 4", len(got), pages, len(all))
	}
	even := func(name string) bool { return (name[7]-'0')%2 == 0 }
	for _, limit := range []uint32{1, 7, 999, 1000, 0, 1 << 31} {
		got = nil
		for after, more := "", true; more; {
			var page []string
			page, more = pageOf(all, after, limit, itself, even)
			if len(page) > limitOf(limit) || more && len(page) == 0 {
				t.Fatalf("a page of %d names, at most %d", len(page), limit)
			}
			got = append(got, page...)
			after = got[len(got)-1]
		}
		if want := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !even(name) }); !slices.Equal(got, want) {
			t.Errorf("limit %d: %d names, want %d", limit, len(got), len(want))
		}
	}
	if page, more := pageOf(all, longest(len(all)), 0, itself, everything); len(page) != 0 || more {
		t.Errorf("behind the last one: %d names, more %v", len(page), more)
	}
}

// What has no pages, or pages by number, fits a message at the limits of the metadata.
func TestFullestAnswersFit(t *testing.T) {
	topics, users := &wire.ListTopicsReply{}, &wire.ListUsersReply{}
	groups, grants, tokens := &wire.ListGroupsReply{}, &wire.ListGrantsReply{}, &wire.ListTokensReply{}
	for i := range pageItems {
		topics.Topics = append(topics.Topics, infoOf(&api.TopicInfo{Name: longest(i), ID: strings.Repeat("f", 32), Bits: 8, Policy: longest(i), Records: 1 << 60, Bytes: 1 << 60, Segments: 1 << 20, Ranges: 9, Damaged: 1, SetAside: 1}))
		users.Users = append(users.Users, &wire.UserInfo{User: longest(i), Password: true, CreatedMs: 1 << 40, ChangedMs: 1 << 40, Grants: 9, Tokens: 9, Quota: &wire.Quota{Records: 1 << 60, Bytes: 1 << 60},
			WrongPasswords: 9, LockedAt: 9, LockedUntilMs: 1 << 41, LockedFrom: strings.Repeat("f", 45)})
		groups.Groups = append(groups.Groups, longest(i))
	}
	for i := range max(cp.MaxGrants, cp.MaxTokens) {
		grants.Grants = append(grants.Grants, &wire.Grant{Kind: 1, Operation: 6, Pattern: longest(i)})
		tokens.Tokens = append(tokens.Tokens, &wire.TokenInfo{Id: strings.Repeat("f", 32), User: longest(0), Name: longest(i), CreatedMs: 1 << 40, ExpiresMs: 1 << 41})
	}
	fits(t, wire.KeyListTopics, topics)
	fits(t, wire.KeyListUsers, users)
	fits(t, wire.KeyListGroups, groups)
	fits(t, wire.KeyListGrants, grants)
	fits(t, wire.KeyListTokens, tokens)
}

// The pages of a topic are the topic, with the longest that is told of its segments.
func TestPagesOfTopic(t *testing.T) {
	d := api.TopicDetail{TopicInfo: api.TopicInfo{Name: longest(0), ID: strings.Repeat("f", 32), Policy: longest(1)}}
	for seq := range uint32(3000) {
		r := api.RangeInfo{Seq: 2 * seq, Start: 1, End: 1 << 32, Active: true, Parents: []uint32{1, 2}, NextOffset: 1 << 40}
		for s := range seq % 5 * 3 {
			r.Segments = append(r.Segments, api.SegmentInfo{Seq: 3 * s, Start: 9, Records: 1 << 40, Bytes: 1 << 40, File: strings.Repeat("s", 80)})
		}
		d.AllRanges = append(d.AllRanges, r)
	}
	many := &d.AllRanges[1234]
	for s := range uint32(5000) { // one range alone that takes several pages
		damage := ""
		if s%7 == 0 {
			damage = strings.Repeat("d", 9000)
		}
		many.Segments = append(many.Segments, api.SegmentInfo{Seq: 100 + s, File: strings.Repeat("s", 80), Damage: damage, Lost: 5, GivenUp: 2})
	}
	var got []*wire.RangeInfo
	pages, ask := 0, wire.DescribeTopic{}
	for more := true; more; pages++ {
		p := detailFrom(&d, TopicPlace{ask.Range, ask.Segment}, nil)
		fits(t, wire.KeyDescribeTopic, p)
		for i, r := range p.Ranges {
			if n := len(got); i == 0 && n > 0 && got[n-1].Seq == r.Seq {
				got[n-1].Segments = append(got[n-1].Segments, r.Segments...)
			} else {
				got = append(got, r)
			}
		}
		more, ask.Range, ask.Segment = p.More, p.NextRange, p.NextSegment
	}
	if pages < 5 || len(got) != len(d.AllRanges) {
		t.Fatalf("%d ranges on %d pages, want %d on 5 or more", len(got), pages, len(d.AllRanges))
	}
	for i, r := range got {
		want := &d.AllRanges[i]
		if r.Seq != want.Seq || r.NextOffset != want.NextOffset || !slices.Equal(r.Parents, want.Parents) || len(r.Segments) != len(want.Segments) {
			t.Fatalf("range %d has %d segments, want range %d with %d", r.Seq, len(r.Segments), want.Seq, len(want.Segments))
		}
		for j, s := range r.Segments {
			if !reflect.DeepEqual(s, segmentOf(&want.Segments[j])) {
				t.Fatalf("range %d: segment %+v, want %+v", r.Seq, s, want.Segments[j])
			}
		}
	}
	if p := detailFrom(&d, TopicPlace{1 << 31, 0}, nil); p.More || len(p.Ranges) != 0 {
		t.Errorf("behind the last range: %+v", p)
	}
	few := d
	few.AllRanges = d.AllRanges[:2]
	if p := detailFrom(&few, TopicPlace{}, &TopicPlace{4, 5}); !p.More || p.NextRange != 4 || p.NextSegment != 5 || len(p.Ranges) != 2 {
		t.Errorf("in front of more: %+v", p)
	}
	if p := detailFrom(&d, TopicPlace{}, &TopicPlace{1 << 31, 0}); !p.More || p.NextRange >= 1<<30 {
		t.Errorf("more than a page, in front of more: %d, %d", p.NextRange, p.NextSegment)
	}
}

// The pages of a group's ranges are the ranges.
func TestPagesOfRanges(t *testing.T) {
	var list, got []api.GroupRange
	for seq := range uint32(20_000) {
		list = append(list, api.GroupRange{Range: 3 * seq, Offset: 1, End: 1 << 60, Lag: 1 << 59, Member: longest(int(seq))})
	}
	pages := 0
	for from, more := uint32(0), true; more; pages++ {
		var page []api.GroupRange
		page, more = rangesFrom(list, from)
		fits(t, wire.KeyDescribeGroup, &wire.DescribeGroupReply{Group: longest(0), Ranges: rangesAt(page), Cursor: strings.Repeat("c", 370<<10), Damage: strings.Repeat("d", wire.MaxText)})
		fits(t, wire.KeyLag, &wire.LagReply{Ranges: rangesAt(page)})
		got = append(got, page...)
		from = got[len(got)-1].Range + 1
	}
	if pages < 10 || !slices.Equal(got, list) {
		t.Errorf("%d ranges on %d pages, want %d", len(got), pages, len(list))
	}
}

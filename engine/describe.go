package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/fence"
	"github.com/ringfence/ringfence/segfile"
)

// Topics lists the topics by name.
func (e *Engine) Topics(ctx context.Context) ([]TopicInfo, error) {
	return api.Collect(e.AllTopics(ctx))
}

// AllTopics visits the topics by name, without holding all of them. It ends after an
// error.
func (e *Engine) AllTopics(ctx context.Context) iter.Seq2[TopicInfo, error] {
	return api.Pages(func(t *TopicInfo) string { return t.Name }, func(after string) ([]TopicInfo, bool, error) {
		return e.TopicPage(ctx, after, topicPage, func(string) bool { return true })
	})
}

const topicPage = 1000 // topics that are looked at together

// TopicPage lists the wanted topics that come after a name, by name: at most limit of them, and
// whether there are more.
func (e *Engine) TopicPage(ctx context.Context, after string, limit int, wanted func(name string) bool) (list []TopicInfo, more bool, err error) {
	if err := e.enter(ctx); err != nil {
		return nil, false, err
	}
	defer e.end()
	aside, err := e.store.Aside()
	if err != nil {
		return nil, false, err
	}
	for {
		var topics []*cp.Topic
		for v := range e.vnodes() {
			if err := e.host.ReadLocal(v, func(s *cp.State) {
				topics = append(topics, s.TopicsAfter(after)...)
			}); err != nil {
				return nil, false, err // some are not all
			}
		}
		topics, more = firstByName(topics, limit, wanted)
		for _, t := range topics {
			after = t.Name
			d, err := e.describe(t.Name, aside)
			if errors.Is(err, ErrNoSuchTopic) {
				continue // deleted meanwhile
			}
			if err != nil {
				return nil, false, err
			}
			list = append(list, d.TopicInfo)
		}
		if len(list) > 0 || !more {
			return list, more, nil
		}
	}
}

// firstByName is the first limit of the wanted topics, by name, and whether there are more. It
// reorders the list, and sorts little of it: a page of very many topics is to cost a look at
// each.
func firstByName(list []*cp.Topic, limit int, wanted func(name string) bool) (first []*cp.Topic, more bool) {
	first = list[:0]
	trim := func() {
		slices.SortFunc(first, func(a, b *cp.Topic) int { return cmp.Compare(a.Name, b.Name) })
		if len(first) > limit {
			first, more = first[:limit], true
		}
	}
	bound := "" // once it is set, limit topics are at or before it
	for _, t := range list {
		if bound != "" && t.Name > bound || !wanted(t.Name) {
			continue
		}
		if first = append(first, t); len(first) > 2*limit {
			trim()
			bound = first[limit-1].Name
		}
	}
	trim()
	return first, more
}

// Describe returns everything about one topic: its ranges with their segments, and its groups.
func (e *Engine) Describe(ctx context.Context, name string) (TopicDetail, error) {
	if err := api.CheckTopic(name); err != nil {
		return TopicDetail{}, err
	}
	if err := e.enter(ctx); err != nil {
		return TopicDetail{}, err
	}
	defer e.end()
	aside, err := e.store.Aside()
	if err != nil {
		return TopicDetail{}, about(name, -1, err)
	}
	return e.describe(name, aside)
}

// describe is Describe with the names of the files that were set aside.
func (e *Engine) describe(name string, aside []string) (d TopicDetail, err error) {
	var ids []fence.SegmentID
	err = e.lookAt(name, func(s *cp.State, t *cp.Topic) {
		d.TopicInfo = topicInfo(t)
		for r := range s.Ranges(name) {
			info := rangeInfo(r)
			for seg := range s.Segments(r.ID) {
				info.Segments = append(info.Segments, segmentInfo(seg))
				ids = append(ids, seg.ID)
			}
			d.AllRanges = append(d.AllRanges, info)
		}
		for g := range s.Groups(name) {
			d.Groups = append(d.Groups, g)
		}
	})
	if err != nil {
		return d, about(name, -1, err)
	}
	if d.Policy != "" {
		err := e.host.ReadLocal(e.home(), func(s *cp.State) {
			_, defined := s.Policy(d.Policy)
			d.PolicyMissing = !defined
		})
		if err != nil {
			return d, about(name, -1, err)
		}
	}
	for _, file := range aside {
		if strings.Contains(file, d.ID) {
			d.SetAside++
		}
	}
	for i := range d.AllRanges {
		r := &d.AllRanges[i]
		if r.Active {
			d.Ranges++
		}
		for j := range r.Segments {
			s := &r.Segments[j]
			e.measure(ids[d.Segments], r, s)
			d.Segments++
			d.Records += s.Records - min(s.Lost, s.Records)
			d.Bytes += s.Bytes
			if s.Lost > s.GivenUp || e.isDamaged(ids[d.Segments-1]) {
				d.Damaged++
			}
		}
	}
	return d, nil
}

// DescribeFrom returns a part of a topic, at the cost of that part; the last part costs a look
// at the whole, for the totals.
func (b *backend) DescribeFrom(ctx context.Context, name string, at server.TopicPlace, limit int) (d TopicDetail, next *server.TopicPlace, err error) {
	if err := api.CheckTopic(name); err != nil {
		return d, nil, err
	}
	if err := b.enter(ctx); err != nil {
		return d, nil, err
	}
	defer b.end()
	d, next, err = b.describeSome(name, at, limit)
	if err == nil && next == nil {
		d, err = b.Describe(ctx, name)
		d.Groups = nil
	}
	return d, next, err
}

// describeSome describes a topic from a place on without its totals: at most limit ranges and
// segments, which is two at least, or it would not get behind a range. It is nothing at all
// where that is the rest.
func (e *Engine) describeSome(name string, at server.TopicPlace, limit int) (d TopicDetail, next *server.TopicPlace, err error) {
	var ids []fence.SegmentID
	heads := map[uint32]fence.SegmentID{} // of the ranges in d
	err = e.lookAt(name, func(s *cp.State, t *cp.Topic) {
		d.TopicInfo = topicInfo(t)
		for seq := at.Range; seq < t.NextRangeSeq; seq++ {
			id := fence.RangeID{Topic: t.ID, Seq: seq}
			if len(d.AllRanges)+len(ids) >= limit {
				next = &server.TopicPlace{Range: seq}
				return
			}
			d.AllRanges = append(d.AllRanges, rangeInfo(s.Range(id)))
			info := &d.AllRanges[len(d.AllRanges)-1]
			if head := s.Head(id); head != nil {
				heads[seq] = head.ID
			}
			for seg := range s.Segments(id) {
				if seq == at.Range && seg.ID.Seq < at.Segment {
					continue
				}
				if len(d.AllRanges)+len(ids) >= limit {
					next = &server.TopicPlace{Range: seq, Segment: seg.ID.Seq}
					return
				}
				info.Segments = append(info.Segments, segmentInfo(seg))
				ids = append(ids, seg.ID)
			}
		}
	})
	if err != nil || next == nil {
		return TopicDetail{}, nil, about(name, -1, err)
	}
	n := 0
	for i := range d.AllRanges {
		r := &d.AllRanges[i]
		for j := range r.Segments {
			e.measure(ids[n], r, &r.Segments[j])
			n++
		}
		if head, ok := heads[r.Seq]; ok { // it says where the range is, also from the next part
			e.measure(head, r, &SegmentInfo{Active: true})
		}
	}
	return d, next, nil
}

func topicInfo(t *cp.Topic) TopicInfo {
	return TopicInfo{Name: t.Name, ID: t.ID.String(), Bits: t.Bits, Policy: t.Policy, Created: time.UnixMilli(t.Created)}
}

func rangeInfo(r *cp.Range) RangeInfo {
	info := RangeInfo{Seq: r.ID.Seq, Start: r.Start, End: r.End, Active: r.Phase == cp.Active, NextOffset: r.NextOffset}
	for _, p := range r.From {
		info.Parents = append(info.Parents, p.Seq)
	}
	return info
}

func segmentInfo(seg *cp.Segment) SegmentInfo {
	si := SegmentInfo{
		Seq: seg.ID.Seq, Active: seg.Phase == cp.Active, Start: seg.Start,
		Records: seg.Length, Bytes: seg.Bytes, OpenedAt: time.UnixMilli(seg.OpenedAt),
	}
	if !si.Active {
		si.SealedAt = time.UnixMilli(seg.SealedAt)
	}
	return si
}

// pathOf is where a segment's file is, or would be.
func (e *Engine) pathOf(id fence.SegmentID) string { return filepath.Join(e.tree, segfile.Name(id)) }

// measure adds what the store knows of a segment.
func (e *Engine) measure(id fence.SegmentID, r *RangeInfo, s *SegmentInfo) {
	e.assess(id, s)
	seg, err := e.store.Segment(id)
	if s.Missing = e.lost[id] != nil || err != nil && (s.Records > 0 || !s.Active); s.Missing {
		s.File = e.pathOf(id)
		return
	}
	if err != nil {
		return // not written yet
	}
	s.File = e.pathOf(id)
	if s.Active {
		s.Records = seg.CommitMark() - seg.Base()
		s.Bytes = seg.Bytes()
		r.NextOffset = seg.CommitMark()
	}
}

// isDamaged says whether a segment is known to be damaged, but for what is on record in
// its file.
func (e *Engine) isDamaged(id fence.SegmentID) bool {
	if e.whyLost(id) != nil {
		return true
	}
	seg, err := e.store.Segment(id)
	if err != nil {
		return false
	}
	_, found := seg.Found()
	return found != nil
}

// assess adds what is known to be wrong with a segment.
func (e *Engine) assess(id fence.SegmentID, s *SegmentInfo) {
	if e.isGivenUp(id) {
		s.Damage, s.Lost, s.GivenUp = "its file is missing, and its loss was accepted", s.Records, s.Records
		return
	}
	if err := e.whyLost(id); err != nil {
		s.Damage, s.Lost = err.Error(), s.Records
		return
	}
	seg, err := e.store.Segment(id)
	if err != nil {
		return
	}
	var notes []string
	holes, err := seg.Holes()
	if err != nil {
		notes = append(notes, err.Error())
	}
	for _, h := range holes {
		if h.Records == 0 {
			continue
		}
		s.Lost += h.Records
		note := fmt.Sprintf("records [%d,%d) are damaged, at byte %d", h.Offset, h.Offset+h.Records, h.Position)
		if h.Accepted {
			s.GivenUp += h.Records
			note += ", and their loss was accepted"
		}
		notes = append(notes, note)
	}
	listed := func(at int64) bool {
		return slices.ContainsFunc(holes, func(h segfile.Hole) bool { return h.Position <= at && at <= h.Position+h.Length })
	}
	if at, err := seg.Found(); err != nil && !listed(at) {
		notes = append(notes, err.Error())
	}
	for _, f := range e.report.Faulty {
		if f.ID == id {
			notes = append(notes, f.Err.Error())
		}
	}
	s.Damage = strings.Join(notes, "; ")
}

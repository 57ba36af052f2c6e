package cp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

func bigID(i int) (id fence.TopicID) {
	binary.LittleEndian.PutUint64(id[:], uint64(i)*0x9e3779b97f4a7c15)
	id[15] = 1
	return id
}

// large is a vnode of n topics with a head each.
func large(tb testing.TB, n int) *cp.State {
	s := cp.NewState()
	for i := range n {
		id := bigID(i)
		for _, cmd := range []cp.Command{
			cp.CreateTopic{Name: fmt.Sprintf("topic-%06d", i), Bits: 8, ID: id, At: 1},
			cp.RegisterSegment{ID: fence.SegmentID{Range: fence.RangeID{Topic: id}}, Replicas: []cp.NodeID{"n1"}, At: 1},
		} {
			if r := s.Apply(cmd); r.Err != nil {
				tb.Fatalf("%+v: %v", cmd, r.Err)
			}
		}
	}
	return s
}

// 100 000 topics fit: they hold, are written, read back and written alike.
func TestManyTopics(t *testing.T) {
	s := large(t, 100_000)
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	b := snapshot(t, s)
	again := restored(t, b)
	if again.Len() != 100_000 || !bytes.Equal(snapshot(t, again), b) {
		t.Fatalf("%d topics came back", again.Len())
	}
	i := 0
	for topic := range s.Topics() {
		if topic.Name != fmt.Sprintf("topic-%06d", i) {
			t.Fatalf("topic %d is %s", i, topic.Name)
		}
		i++
	}
}

// What a frontend asks for on every batch allocates nothing, however many topics
// there are.
func TestQueriesDoNotAllocate(t *testing.T) {
	s := large(t, 1000)
	name, r := "topic-000500", fence.RangeID{Topic: bigID(500)}
	seg := fence.SegmentID{Range: r}
	n := testing.AllocsPerRun(100, func() {
		if s.Topic(name) == nil || s.TopicByID(r.Topic) == nil || len(s.ActiveRanges(name)) != 1 || s.Range(r) == nil ||
			s.Head(r) == nil || s.Segment(seg) == nil || s.Sealed(r) != nil || s.Migrating(name) || s.Revision(name) == 0 {
			t.Fatal("not there")
		}
		for seg := range s.Segments(r) {
			if seg.Start != 0 {
				t.Fatal("not there")
			}
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

// A command costs the same in a vnode of many topics as in one of few, and so
// does a clone.
func BenchmarkApply(b *testing.B) {
	for _, topics := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			s := large(b, topics)
			offset, i := make([]uint64, topics), 0
			for b.Loop() {
				n := i % topics
				r := fence.RangeID{Topic: bigID(n)}
				seq := s.Head(r).ID.Seq
				s.Apply(cp.SealSegment{ID: fence.SegmentID{Range: r, Seq: seq}, Length: 1, Bytes: 1, At: 1})
				offset[n]++
				if rep := s.Apply(cp.RegisterSegment{ID: fence.SegmentID{Range: r, Seq: seq + 1}, Replicas: []cp.NodeID{"n1"}, Start: offset[n]}); rep.Err != nil {
					b.Fatal(rep.Err)
				}
				i++
			}
		})
	}
}

func BenchmarkClone(b *testing.B) {
	for _, topics := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("topics=%d", topics), func(b *testing.B) {
			s := large(b, topics)
			i := 0
			for b.Loop() {
				s.Clone()
				s.Apply(cp.BindTopicPolicy{Topic: fmt.Sprintf("topic-%06d", i%topics), Policy: "p"})
				i++
			}
		})
	}
}

func BenchmarkSnapshot(b *testing.B) {
	s := large(b, 100_000)
	size := len(snapshot(b, s))
	b.SetBytes(int64(size))
	for b.Loop() {
		if err := s.Snapshot(io.Discard); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRestore(b *testing.B) {
	data := snapshot(b, large(b, 100_000))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if err := cp.NewState().Restore(bytes.NewReader(data)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	s := large(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		if s.Topic("topic-050000") == nil {
			b.Fatal("gone")
		}
	}
}

package cp_test

import (
	"fmt"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/fence"
)

// A segment is registered where its range ends, fenced by its primary, and
// sealed with what the fence answered; then the range can split.
func Example() {
	s := cp.NewState()
	root := s.Apply(cp.CreateTopic{Name: "logs", Bits: 8, ID: fence.TopicID{1}}).Range

	first := fence.SegmentID{Range: root, Seq: s.Range(root).NextSequence}
	s.Apply(cp.RegisterSegment{ID: first, Replicas: []cp.NodeID{"n1"}, Start: s.Range(root).NextOffset})
	fmt.Println(s.Apply(cp.SplitRange{Range: root}).Err)

	seal, _ := cp.Sealing(s.Head(root), 1000, 64<<10, 1_700_000_000_000)
	s.Apply(seal)
	fmt.Println(s.Range(root).NextOffset)

	r := s.Apply(cp.SplitRange{Range: root})
	fmt.Println(r.Range.Seq, r.Range2.Seq, len(s.ActiveRanges("logs")))
	// Output:
	// cp: the range has an active segment
	// 1000
	// 1 2 2
}

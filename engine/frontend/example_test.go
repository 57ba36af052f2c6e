package frontend_test

import (
	"fmt"
	"io"

	"github.com/ringfence/ringfence/engine/frontend"
	"github.com/ringfence/ringfence/fence"
)

// A topic is written until its segment is owed a roll; the fence's answer becomes the sealed length, and the
// next batch opens the successor exactly there.
func ExampleFrontend() {
	n := uint64(0)
	f, err := frontend.New(frontend.Options{
		Self:            "node-1",
		Bits:            func() uint64 { n++; return n }, // real callers draw random bits
		SegmentMaxBytes: 1000,
	})
	if err != nil {
		panic(err)
	}
	root, err := f.CreateTopic("logs", 8, fence.TopicID{1}, 0)
	if err != nil {
		panic(err)
	}
	topic, err := f.Topic("logs")
	if err != nil {
		panic(err)
	}
	batch := frontend.BatchInfo{MinPos: 7, MaxPos: 900, Count: 10, Bytes: 600}
	for range 2 {
		d, err := f.PlanBatchIn(topic, batch)
		if err != nil {
			panic(err)
		}
		fmt.Println("batch into segment", d.Segment.Seq, "at", d.First, "to", d.Last)
		f.AdoptOffsets(d.Range, d.Segment, d.Last) // the primary has stored it
	}
	for _, roll := range f.FencesToSend(0, 1e9) {
		fmt.Println("fence segment", roll.Segment.Seq)
		if err := f.RecordFence(roll, 20, 1200, 0); err != nil { // the copy answered that it ends at 20
			panic(err)
		}
	}
	d, err := f.PlanBatchIn(topic, batch)
	if err != nil {
		panic(err)
	}
	fmt.Println("batch into segment", d.Segment.Seq, "at", d.First, "to", d.Last)
	extent, err := f.Locate(root, 3)
	fmt.Println("offset 3 is in segment", extent.Segment.ID.Seq, err)
	_, err = f.Locate(root, 20)
	fmt.Println("nothing is committed in the new one:", err == io.EOF)
	// Output:
	// batch into segment 0 at 0 to 9
	// batch into segment 0 at 10 to 19
	// fence segment 0
	// batch into segment 1 at 20 to 29
	// offset 3 is in segment 0 <nil>
	// nothing is committed in the new one: true
}

// A consumer follows a split: the parent first, then both halves, each from its own offsets.
func ExampleFrontend_Plan() {
	n := uint64(0)
	f, err := frontend.New(frontend.Options{Self: "node-1", Bits: func() uint64 { n++; return n }})
	if err != nil {
		panic(err)
	}
	root, err := f.CreateTopic("logs", 8, fence.TopicID{1}, 0)
	if err != nil {
		panic(err)
	}
	if _, err := f.PlanBatch("logs", frontend.BatchInfo{Count: 5}); err != nil {
		panic(err)
	}
	roll, _ := f.ActiveRoll(root)
	if err := f.RecordSeal(roll, 5, 100, 0); err != nil {
		panic(err)
	}
	if _, _, err := f.SplitRange(root); err != nil {
		panic(err)
	}
	var at frontend.Offsets
	for {
		next, sources, err := f.Plan("logs", at, nil)
		if err != nil {
			panic(err)
		}
		at = next
		for _, s := range sources {
			fmt.Println("range", s.Range.Seq, "from", s.From, "for keys of", s.Start>>24, "to", s.End>>24, "final:", s.Final)
		}
		if !sources[0].Final {
			break
		}
		at.Advance(sources[0], sources[0].Limit) // its records have been read
	}
	// Output:
	// range 0 from 0 for keys of 0 to 256 final: true
	// range 1 from 0 for keys of 0 to 128 final: false
	// range 2 from 0 for keys of 128 to 256 final: false
}

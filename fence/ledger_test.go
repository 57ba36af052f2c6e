package fence_test

import (
	"cmp"
	"slices"
	"testing"

	"github.com/ringfence/ringfence/fence"
	"pgregory.net/rapid"
)

const window = 1000

func rangeOf(topic byte, seq uint32) fence.RangeID {
	return fence.RangeID{Topic: fence.TopicID{topic}, Seq: seq}
}

func rollOf(topic byte, r, s uint32) fence.Roll {
	return fence.Roll{Segment: fence.SegmentID{Range: rangeOf(topic, r), Seq: s}, Primary: "n1", Start: uint64(s) * 10}
}

func TestLedgerOwesFirst(t *testing.T) {
	var l fence.Ledger
	if !l.Owe(rollOf(1, 0, 0)) || l.Owe(rollOf(1, 0, 1)) {
		t.Fatal("a second roll of one range is owed beside the first")
	}
	if r, ok := l.Owed(rangeOf(1, 0)); !ok || r != rollOf(1, 0, 0) {
		t.Fatalf("range owes %v, %v", r, ok)
	}
	if !l.Owes(rollOf(1, 0, 0).Segment) || l.Owes(rollOf(1, 0, 1).Segment) {
		t.Fatal("the wrong segment's roll is owed")
	}
}

// A thousand batches over the limit in one window send one fence; a lost one is
// sent again when its window has passed, without any batch.
func TestLedgerSendsOncePerWindow(t *testing.T) {
	var l fence.Ledger
	sent := 0
	for now := range fence.Instant(window) {
		l.Owe(rollOf(1, 0, 0))
		sent += len(l.FencesToSend(now, window))
	}
	if sent != 1 {
		t.Fatalf("%d fences in one window", sent)
	}
	if got := l.FencesToSend(window, window); len(got) != 1 {
		t.Fatalf("a lost fence is sent again %d times", len(got))
	}
}

// A refusal clears what is owed, but not what is in flight: that is how a
// frontend knows that its own fence overtook its batch.
func TestLedgerRefusalKeepsFlight(t *testing.T) {
	var l fence.Ledger
	roll := rollOf(1, 3, 5)
	l.Owe(roll)
	l.FencesToSend(100, window)
	l.Refused(roll.Segment)
	if l.Owes(roll.Segment) || !l.Awaiting(roll.Segment, 200, window) {
		t.Fatal("a refused segment must be awaited and not owed")
	}
	if r, ok := l.AwaitingRange(roll.Segment.Range.Topic, 200, window); !ok || r != roll.Range() {
		t.Fatalf("awaited range %v, %v", r, ok)
	}
	if l.Awaiting(roll.Segment, 100+window, window) {
		t.Fatal("awaited for longer than the window")
	}
	l.Forget(roll.Segment)
	if l.Awaiting(roll.Segment, 200, window) {
		t.Fatal("a fence that failed is awaited")
	}
}

func TestLedgerDropTopic(t *testing.T) {
	var l fence.Ledger
	l.Owe(rollOf(1, 0, 0))
	l.Owe(rollOf(2, 0, 0))
	l.FencesToSend(0, window)
	l.DropTopic(fence.TopicID{1})
	if due := l.Due(); len(due) != 1 || due[0] != rollOf(2, 0, 0) {
		t.Fatalf("%v is owed", due)
	}
	if _, ok := l.AwaitingRange(fence.TopicID{1}, 1, window); ok {
		t.Fatal("a fence of a deleted topic is awaited")
	}
}

// naive keeps everything that ever happened and answers by looking through it.
type naive struct {
	owed    []fence.Roll
	sent    map[fence.SegmentID]fence.Instant // of owed rolls
	flights []flight
}

type flight struct {
	segment fence.SegmentID
	at      fence.Instant
}

func (n *naive) owe(r fence.Roll) bool {
	if slices.ContainsFunc(n.owed, func(o fence.Roll) bool { return o.Range() == r.Range() }) {
		return false
	}
	n.owed = append(n.owed, r)
	return true
}

func (n *naive) send(now fence.Instant) []fence.Roll {
	var rolls []fence.Roll
	for _, o := range n.owed {
		if at, ok := n.sent[o.Segment]; ok && int64(now-at) < window {
			continue
		}
		n.sent[o.Segment] = now
		n.flights = slices.DeleteFunc(n.flights, func(f flight) bool { return f.segment.Range == o.Range() })
		n.flights = append(n.flights, flight{o.Segment, now})
		rolls = append(rolls, o)
	}
	slices.SortFunc(rolls, func(a, b fence.Roll) int {
		return cmp.Or(a.Range().Compare(b.Range()), cmp.Compare(a.Segment.Seq, b.Segment.Seq))
	})
	return rolls
}

func (n *naive) refused(s fence.SegmentID) {
	n.owed = slices.DeleteFunc(n.owed, func(o fence.Roll) bool { return o.Segment == s })
	delete(n.sent, s)
}

func (n *naive) forget(s fence.SegmentID) {
	n.flights = slices.DeleteFunc(n.flights, func(f flight) bool { return f.segment == s })
}

// Whatever is owed, sent, refused, forgotten and cleared, in whatever order, the
// ledger answers what the plain lists answer.
func TestLedgerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l fence.Ledger
		n := naive{sent: map[fence.SegmentID]fence.Instant{}}
		now := fence.Instant(0)
		draw := func(t *rapid.T) fence.Roll {
			return rollOf(byte(rapid.IntRange(1, 2).Draw(t, "topic")), rapid.Uint32Range(0, 2).Draw(t, "range"), rapid.Uint32Range(0, 2).Draw(t, "segment"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"owe": func(t *rapid.T) {
				if r := draw(t); l.Owe(r) != n.owe(r) {
					t.Fatalf("owing %v", r)
				}
			},
			"send": func(t *rapid.T) {
				if got, want := l.FencesToSend(now, window), n.send(now); !slices.Equal(got, want) {
					t.Fatalf("sends %v, want %v", got, want)
				}
			},
			"pass":    func(t *rapid.T) { now += fence.Instant(rapid.Int64Range(1, window).Draw(t, "ns")) },
			"refused": func(t *rapid.T) { s := draw(t).Segment; l.Refused(s); n.refused(s) },
			"forget":  func(t *rapid.T) { s := draw(t).Segment; l.Forget(s); n.forget(s) },
			"clear":   func(t *rapid.T) { s := draw(t).Segment; l.Clear(s); n.refused(s); n.forget(s) },
			"": func(t *rapid.T) {
				if l.Len() != len(n.owed) || len(l.Due()) != len(n.owed) {
					t.Fatalf("owes %d, want %d", l.Len(), len(n.owed))
				}
				for _, topic := range []byte{1, 2} {
					var lowest *fence.RangeID
					for r := range uint32(3) {
						for s := range uint32(3) {
							roll := rollOf(topic, r, s)
							want := slices.ContainsFunc(n.flights, func(f flight) bool { return f.segment == roll.Segment && int64(now-f.at) < window })
							if l.Awaiting(roll.Segment, now, window) != want {
								t.Fatalf("awaiting %v, want %v", roll.Segment, want)
							}
							if l.Owes(roll.Segment) != slices.Contains(n.owed, roll) {
								t.Fatalf("owes %v", roll)
							}
							if id := roll.Range(); want && lowest == nil {
								lowest = &id
							}
						}
					}
					got, ok := l.AwaitingRange(fence.TopicID{topic}, now, window)
					if ok != (lowest != nil) || ok && got != *lowest {
						t.Fatalf("lowest awaited range %v, %v, want %v", got, ok, lowest)
					}
				}
			},
		})
	})
}

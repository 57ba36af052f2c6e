package engine

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// I12: clients that come and go, half of them in the middle of things, leave nothing
// behind: no descriptors, no mappings, no memory that is locked or pinned. All of these
// are seen to be taken while a client is there. (F05)
func TestI12ComingAndGoingLeavesNothing(t *testing.T) {
	t.Run("copied", func(t *testing.T) { comeAndGo(t, server.Options{}) })
	t.Run("written from where it lies", func(t *testing.T) { comeAndGo(t, trusting()) })
}

func comeAndGo(t *testing.T, o server.Options) {
	trusted := o.Sharing.Trusted != nil
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	s := shareMemory(t, e, o)
	frame := frameWith(7, 0, make([]byte, 40_000))
	cycle := func(answers int) (during possession) {
		b, err := dialBare(s.path)
		must(t, err)
		m, err := b.call(wire.KeyOpenProducer, &wire.OpenProducer{Topic: "t", Id: 7, Unnumbered: true})
		must(t, err)
		p := m.(*wire.OpenProducerReply).Producer
		for range 5 {
			mem, _ := b.g.Arena().Alloc(len(frame))
			copy(mem, frame)
			b.g.Submit(1<<31, p, mem)
		}
		b.g.Ring()
		for range answers {
			soon(t, "an answer", func() { _, err = b.g.Next() })
			must(t, err)
		}
		during = holdings(t)
		b.leave()
		eventually(t, "the client is gone", func() bool { return s.Stats().Connections == 0 })
		return during
	}
	cycle(5)
	before := holdings(t)
	during := cycle(1)
	const times = 100
	for i := range times {
		cycle(i % 6)
	}
	eventually(t, "what was under way has ended", func() bool { return holdings(t).within(before) })
	if after := holdings(t); !after.within(before) {
		t.Errorf("after %d clients %+v, before them %+v", times, after, before)
	}
	if during.descriptors <= before.descriptors || during.mappings <= before.mappings {
		t.Errorf("while a client was there %+v, before it %+v: the test does not see what it takes", during, before)
	}
	if pins := e.Opened().IO.Engine == "io_uring"; trusted && pins && slices.Equal(during.pinned, before.pinned) {
		t.Errorf("while a trusted client was there %v, as before it: the test does not see what it pins", during.pinned)
	} else if trusted && !pins {
		t.Log("NOT TESTED: without io_uring nothing is pinned")
	}
	if n := s.Stats().Shared; n.Attached != times+2 || (n.Lent > 0) != trusted || n.Hostile+n.Faults != 0 || n.Clients+n.Bytes != 0 {
		t.Errorf("%+v", n)
	}
	t.Logf("before %+v, with a client %+v", before, during)
}

// possession is what shared memory takes of a process.
type possession struct {
	descriptors, mappings int
	pinned                []string // lines of the kernel: memory that is locked, and pinned
}

// within says whether no more is held than in another moment.
func (h possession) within(o possession) bool {
	return h.descriptors <= o.descriptors && h.mappings <= o.mappings && slices.Equal(h.pinned, o.pinned)
}

func holdings(t *testing.T) (h possession) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	maps, err := os.ReadFile("/proc/self/maps")
	must(t, err)
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	h.descriptors, h.mappings = len(fds), bytes.Count(maps, []byte("memfd:ringfence"))
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmLck") || strings.HasPrefix(line, "VmPin") {
			h.pinned = append(h.pinned, strings.Join(strings.Fields(line), " "))
		}
	}
	return h
}

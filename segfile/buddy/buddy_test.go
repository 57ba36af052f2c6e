package buddy

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
)

// Blocks never overlap, keep their bytes, lie on their own size, and come back
// whole: after everything is freed the largest block is there again.
func TestArenaKeepsBlocksApart(t *testing.T) {
	for _, pages := range []int{1, 2, 3, 7, 64, 100, 257} {
		rng := rand.New(rand.NewPCG(uint64(pages), 0))
		a := New(make([]byte, (pages+1)*Block))
		type held struct {
			b   []byte
			tag byte
		}
		var have []held
		refused := 0
		for i := range 2000 {
			if rng.IntN(5) < 3 {
				n := rng.IntN(max(8, pages/8)*Block) + 1
				b, ok := a.Alloc(n)
				if !ok {
					refused++
					continue
				}
				if len(b) != n || cap(b) < n || cap(b)&(cap(b)-1) != 0 || (address(b)-a.base)%uintptr(cap(b)) != 0 {
					t.Fatalf("pages=%d: Alloc(%d) has len %d, cap %d at %d", pages, n, len(b), cap(b), address(b)-a.base)
				}
				for j := range b {
					b[j] = byte(i)
				}
				have = append(have, held{b, byte(i)})
			} else if len(have) > 0 {
				k := rng.IntN(len(have))
				if h := have[k]; !bytes.Equal(h.b, bytes.Repeat([]byte{h.tag}, len(h.b))) {
					t.Fatalf("pages=%d: a block was overwritten", pages)
				}
				a.Free(have[k].b[:0])
				have = append(have[:k], have[k+1:]...)
			}
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
		}
		if refused == 0 {
			t.Fatalf("pages=%d: the arena was never full", pages)
		}
		for _, h := range have {
			a.Free(h.b)
		}
		if err := a.Check(); err != nil || a.InUse() != 0 {
			t.Fatal(a.InUse(), err)
		}
		largest := Block << (len(a.free) - 1)
		if _, ok := a.Alloc(largest); !ok {
			t.Fatalf("pages=%d: free blocks did not join to %d bytes again", pages, largest)
		}
	}
}

// Large blocks go round the arena, past what is still given out, before one comes again;
// small ones stay together where there is the least to spare.
func TestArenaGivesLargeBlocksInTurn(t *testing.T) {
	const size = Block << turnOrder
	a := New(aligned(16 * size))
	start := func(n int) int {
		t.Helper()
		b, ok := a.Alloc(n)
		if !ok {
			t.Fatalf("no block of %d bytes", n)
		}
		if at := address(b) - a.base; at%size != 0 {
			t.Fatalf("a block at %d", at)
		}
		a.Free(b)
		return int(address(b)-a.base) / size
	}
	for want := range 16 {
		if got := start(size - want); got != want {
			t.Fatalf("block %d was given out, want %d", got, want)
		}
	}
	kept, _ := a.Alloc(size) // the first again
	small, _ := a.Alloc(1)
	for i, want := range []int{2, 4, 6, 8} { // pairs, from the first whole one
		if got := start(2 * size); got != want {
			t.Fatalf("pair %d was given out at block %d, want %d", i, got, want)
		}
	}
	if at := int(address(small)-a.base) / size; at != 1 {
		t.Fatalf("a small block lies in block %d, want the least that is free, 1", at)
	}
	for want := 10; want < 16; want++ {
		if got := start(size); got != want {
			t.Fatalf("block %d was given out, want %d", got, want)
		}
	}
	if got := start(size); got != 2 {
		t.Fatalf("block %d was given out, want 2: 0 and 1 are in use", got)
	}
	packed, _ := a.Pack(size)
	if at := int(address(packed)-a.base) / size; at != 2 {
		t.Fatalf("what is kept lies in block %d, want the least that is free, 2", at)
	}
	if got := start(size); got != 3 {
		t.Fatalf("block %d was given out, want the next in turn, 3", got)
	}
	a.Free(packed)
	a.Free(kept)
	a.Free(small)
	if err := a.Check(); err != nil || a.InUse() != 0 {
		t.Fatal(a.InUse(), err)
	}
}

// Blocks that stay, as batches that are filled slowly do, leave a quarter of the arena whole,
// wherever the turn was when they were given out.
func TestArenaKeepsWholeBlocksBesideThoseThatStay(t *testing.T) {
	const small = Block << turnOrder
	for _, size := range []int{4 << 20, 6 << 20, 16 << 20, 64 << 20} {
		for seed := range uint64(10) {
			rng := rand.New(rand.NewPCG(uint64(size), seed))
			a := New(aligned(size))
			largest := a.Takes(min(size/4, mostAsked))
			take := func(n int) []byte {
				t.Helper()
				b, ok := a.Alloc(n)
				if !ok {
					t.Fatalf("%d MiB, seed %d: no block of %d KiB", size>>20, seed, n>>10)
				}
				return b
			}
			crossed := 0 // how often the turn came to another large block
			for range min(16, largest/small) {
				for range rng.IntN(size / small) { // the turn goes on
					at := a.turn * Block / largest
					a.Free(take(small))
					if a.turn*Block/largest != at {
						crossed++
					}
				}
				take(small) // and stays
				var large [][]byte
				for range size / largest / 4 {
					large = append(large, take(largest))
				}
				for _, b := range large {
					a.Free(b)
				}
			}
			if crossed == 0 {
				t.Fatalf("%d MiB, seed %d: the turn stood still", size>>20, seed)
			}
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// aligned is memory of which New leaves nothing out.
func aligned(n int) []byte {
	mem := make([]byte, n+Block)
	return mem[int(-address(mem)%Block):][:n]
}

func TestArenaRefusesWrongFrees(t *testing.T) {
	a := New(make([]byte, 17*Block))
	b, _ := a.Alloc(3 * Block)
	a.Free(b)
	live, _ := a.Alloc(2 * Block)
	for name, bad := range map[string][]byte{
		"twice": b[2*Block:], "inside a block": live[Block:], "unaligned": live[1:],
		"foreign": make([]byte, Block), "nil": nil,
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Free did not panic", name)
				}
			}()
			a.Free(bad)
		}()
	}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
}

func TestArenaContains(t *testing.T) {
	a := New(make([]byte, 17*Block))
	b, _ := a.Alloc(3 * Block)
	c, _ := a.Alloc(Block)
	for name, tc := range map[string]struct {
		b    []byte
		want bool
	}{
		"all": {b, true}, "its capacity": {b[:4*Block], true}, "middle": {b[Block+5 : Block+6], true}, "one page": {c, true},
		"empty": {b[:0], false}, "foreign": {make([]byte, 8), false}, "two blocks": {a.mem[:5*Block], false},
		"free": {a.mem[8*Block : 9*Block], false},
	} {
		if got := a.Contains(tc.b); got != tc.want {
			t.Errorf("%s: Contains = %v", name, got)
		}
	}
	a.Free(b)
	if a.Contains(b) {
		t.Error("contains a freed block")
	}
}

func TestArenaWaitersAreServedInOrder(t *testing.T) {
	a := New(make([]byte, 5*Block)) // 4 whole pages at least
	all, ok := a.Alloc(4 * Block)
	if !ok {
		t.Fatal("no block of four pages")
	}
	if a.Size() > 4*Block { // the heap happened to be aligned
		if _, ok := a.Alloc(Block); !ok {
			t.Fatal("no fifth page")
		}
	}
	got := make(chan int, 3)
	for i, n := range []int{2 * Block, Block, Block} {
		go func() {
			if _, err := a.AllocWait(context.Background(), n); err != nil {
				t.Error(err)
			}
			got <- i
		}()
		for waiting := 0; waiting != i+1; {
			a.mu.Lock()
			waiting = len(a.waiters)
			a.mu.Unlock()
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("gave up")
	cancel(why)
	if _, err := a.AllocWait(ctx, Block); !errors.Is(err, why) {
		t.Fatal(err)
	}
	a.Free(all)
	for range 3 {
		select {
		case <-got:
		case <-time.After(10 * time.Second):
			t.Fatal("a waiter was not served")
		}
	}
	if err := a.Check(); err != nil || len(a.waiters) != 0 {
		t.Fatal(len(a.waiters), err)
	}
	if _, err := a.AllocWait(context.Background(), 64*Block); !errors.Is(err, ErrTooLarge) {
		t.Fatal("waits for what can never come:", err)
	}
}

// waiting starts AllocWait and returns once it waits.
func waiting(ctx context.Context, t *testing.T, a *Arena, n int) chan []byte {
	t.Helper()
	got := make(chan []byte, 1)
	count := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.waiters)
	}
	before := count()
	go func() {
		b, _ := a.AllocWait(ctx, n)
		got <- b
	}()
	for count() == before {
		runtime.Gosched()
	}
	return got
}

// Who waits for a large block gets it, though small ones are taken and freed all the time, and
// go on being; what is kept for long is in nobody's way.
func TestArenaLargeWaiterIsNotOvertakenForEver(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a := New(aligned(64 * Block))
		var long [2][]byte
		for i := range long {
			long[i], _ = a.Pack(1 + rng.IntN(3*Block)) // both in the first place for 16
		}
		var live [][]byte
		take := func() bool {
			b, ok := a.Alloc(Block)
			if ok {
				live = append(live, b)
			}
			return ok
		}
		for take() {
		}
		had := len(live)
		got := waiting(t.Context(), t, a, 16*Block)
		rng.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
		refused, taken := 0, 0
		for served := false; !served; {
			if refused+taken > passedMost+2*had {
				t.Fatalf("seed %d: still overtaken after %d frees", seed, refused+taken)
			}
			a.Free(live[0])
			live = live[1:]
			if take() {
				taken++
			} else {
				refused++
			}
			if err := a.Check(); err != nil {
				t.Fatal(err)
			}
			a.mu.Lock()
			served = len(a.waiters) == 0
			a.mu.Unlock()
		}
		if taken < had || refused < 15 {
			t.Errorf("seed %d: %d small blocks were taken beside it, and %d were not there", seed, taken, refused)
		}
		for _, b := range append(live, <-got, long[0], long[1]) {
			a.Free(b)
		}
		if err := a.Check(); err != nil || a.InUse() != 0 {
			t.Fatal(a.InUse(), err)
		}
		if _, ok := a.Alloc(64 * Block); !ok {
			t.Fatal("free blocks did not join again")
		}
	}
}

// Who waits behind one that wants more gets what is of no use to that.
func TestArenaSmallWaiterGetsWhatIsLeft(t *testing.T) {
	a := New(aligned(8 * Block))
	var live [][]byte
	for range 8 {
		b, _ := a.Alloc(Block)
		live = append(live, b)
	}
	large := waiting(t.Context(), t, a, 8*Block)
	small := waiting(t.Context(), t, a, Block)
	a.Free(live[3])
	a.Free(<-small)
	if b, ok := a.Alloc(Block); !ok {
		t.Error("a page is free, and nobody who waits can do with it")
	} else {
		live[3] = b
	}
	for _, b := range live {
		a.Free(b)
	}
	a.Free(<-large)
}

// Waiters that come, give up and are served, beside others who take and free: the books are
// right, everybody is served in the end, and the arena is whole again.
func TestArenaWaitersComeAndGo(t *testing.T) {
	kept, cancelled := 0, 0
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 2))
		a := New(aligned((17 + rng.IntN(100)) * Block))
		type wait struct {
			got    chan []byte
			cancel context.CancelFunc
		}
		var live [][]byte
		var waits []wait
		for range 1000 {
			n := 1 + rng.IntN(Block<<rng.IntN(5))
			alloc := a.Alloc
			if rng.IntN(4) == 0 {
				alloc = a.Pack
			}
			switch op := rng.IntN(8); {
			case op < 4:
				if b, ok := alloc(n); ok {
					live = append(live, b)
				} else if op == 0 && len(waits) < 10 {
					ctx, cancel := context.WithCancel(t.Context())
					waits = append(waits, wait{waiting(ctx, t, a, n), cancel})
				}
			case op == 4 && len(waits) > 0 && rng.IntN(4) == 0:
				i := rng.IntN(len(waits))
				waits[i].cancel()
				if b := <-waits[i].got; b != nil {
					live = append(live, b)
				}
				waits = slices.Delete(waits, i, i+1)
				cancelled++
			case len(live) > 0:
				i := rng.IntN(len(live))
				a.Free(live[i])
				live = slices.Delete(live, i, i+1)
			}
			if err := a.Check(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if a.kept.is {
				kept++
			}
		}
		for _, b := range live {
			a.Free(b)
		}
		for len(waits) > 0 { // one may wait for what another one was given
			waits = slices.DeleteFunc(waits, func(w wait) bool {
				select {
				case b := <-w.got:
					a.Free(b)
					w.cancel()
					return true
				default:
					runtime.Gosched()
					return false
				}
			})
		}
		if err := a.Check(); err != nil || a.InUse() != 0 || a.kept.is {
			t.Fatalf("seed %d: %d bytes in use, %+v kept: %v", seed, a.InUse(), a.kept, err)
		}
		if _, ok := a.Alloc(a.Largest()); !ok {
			t.Fatalf("seed %d: free blocks did not join again", seed)
		}
	}
	if kept == 0 || cancelled == 0 {
		t.Fatalf("a place was kept %d times, %d waiters gave up", kept, cancelled)
	}
}

func TestArenaDoesNotAllocate(t *testing.T) {
	a := New(make([]byte, 65*Block))
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		b, _ := a.Alloc(3 * Block)
		c, _ := a.AllocWait(ctx, Block)
		if !a.Contains(b) {
			t.Fatal("lost")
		}
		a.Free(b)
		a.Free(c)
	}); n != 0 {
		t.Fatalf("%v allocations a round", n)
	}
}

func BenchmarkArena(b *testing.B) {
	a := New(make([]byte, 1025*Block))
	for b.Loop() {
		m, _ := a.Alloc(64 << 10)
		a.Free(m)
	}
}

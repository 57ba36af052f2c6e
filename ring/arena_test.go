package ring

import (
	"errors"
	"os"
	"strings"
	"testing"
)

func TestArena(t *testing.T) {
	for ask, want := range map[int]int{1: 2 << 20, 2 << 20: 2 << 20, 2<<20 + 1: 4 << 20, 32 << 20: 32 << 20} {
		a, err := NewArena(ask)
		if err != nil {
			t.Fatal(err)
		}
		mem := a.Bytes()
		if len(mem) != want || addressOf(mem)%hugePage != 0 {
			t.Fatalf("%d bytes at %x for %d", len(mem), addressOf(mem), ask)
		}
		for i := range mem {
			if mem[i] != 0 {
				t.Fatal("not zero")
			}
			mem[i] = 1
		}
		mode, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
		if !a.HugePages() && !strings.Contains(string(mode), "[never]") {
			t.Logf("no 2 MiB pages for %d MiB although the host allows them", want>>20)
		}
		if free, _ := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"); strings.TrimSpace(string(free)) == "0" && a.HugePages() != onHugePages(mem) {
			t.Errorf("claims huge pages: %v, the kernel says %v", a.HugePages(), onHugePages(mem))
		}
		if err := errors.Join(a.Close(), a.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for _, ask := range []int{0, -1} {
		if _, err := NewArena(ask); !errors.Is(err, ErrInvalid) {
			t.Error(ask, err)
		}
	}
	if _, err := NewArena(1 << 50); err == nil {
		t.Error("a petabyte")
	}
}

// What is cut off to align an arena is given back: arenas come and go without
// leaving mappings behind.
func TestArenaLeavesNothing(t *testing.T) {
	lines := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(maps), "\n")
	}
	memory := func() {
		a, err := NewArena(2 << 20)
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	memory()
	before := lines()
	for range 200 {
		memory()
	}
	if after := lines(); after > before+20 {
		t.Fatalf("%d mappings before, %d after", before, after)
	}
}

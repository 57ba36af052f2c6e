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

// An arena that is touched later is used meanwhile, and is whole in the end.
func TestArenaTouchedLater(t *testing.T) {
	a, err := MapArena(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	mem, done := a.Bytes(), make(chan error)
	go func() { done <- a.Touch(func() bool { return false }) }()
	for i := range mem {
		mem[i] = byte(i >> 12)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i := range mem {
		if mem[i] != byte(i>>12) {
			t.Fatalf("byte %d was changed", i)
		}
	}
	if !a.Touched() {
		t.Error("not touched")
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if a, err = MapArena(16 << 20); err != nil {
		t.Fatal(err)
	}
	if a.Touched() {
		t.Log("this host has no way to touch memory that is in use, or 2 MiB pages reserved")
	} else if err := a.Touch(func() bool { return true }); err != nil || a.Touched() {
		t.Error("was told to stop", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
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

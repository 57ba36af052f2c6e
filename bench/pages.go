package bench

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// pageChoice is one way to put fio's buffers on pages of a size. The floor must
// use 2 MiB pages as the engine does, or it flatters the engine: direct writes
// from 4 KiB pages are up to three times slower.
type pageChoice struct {
	name string
	args []string
	env  []string
	need int // 2 MiB pages that must be reserved while it runs
}

const hugePage = 2 << 20

const hugePagesFile = "/proc/sys/vm/nr_hugepages"

// pageChoices lists the ways from best to worst: reserved huge pages, transparent
// ones that glibc asks for, whatever malloc gives.
func pageChoices(s Shape) []pageChoice {
	// fio allocates depth x block in one piece, rounded up, and two pages for itself.
	need := (s.Block*s.Depth+hugePage-1)/hugePage + 2
	return []pageChoice{
		{name: "2 MiB pages (hugetlb)", args: []string{"--iomem=shmhuge"}, need: need},
		{name: "2 MiB pages (hugetlb)", args: []string{"--iomem=mmaphuge"}, need: need},
		{name: "transparent huge pages, as far as glibc gets them", env: []string{"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"}},
		{name: "4 KiB pages"},
	}
}

// reserve makes sure that the pages are there while fio runs, and gives back what
// it added. It needs root only when too few are reserved already.
func (p pageChoice) reserve() (restore func(), err error) {
	if p.need == 0 {
		return func() {}, nil
	}
	free, err := meminfo("HugePages_Free")
	if err != nil {
		return nil, err
	}
	if free >= p.need {
		return func() {}, nil
	}
	before, err := readInt(hugePagesFile)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(hugePagesFile, []byte(strconv.Itoa(before+p.need-free)), 0); err != nil {
		return nil, fmt.Errorf("reserving huge pages: %w", err)
	}
	restore = func() { _ = os.WriteFile(hugePagesFile, []byte(strconv.Itoa(before)), 0) } // best effort: root did the same a moment ago
	if free, err = meminfo("HugePages_Free"); err != nil || free < p.need {
		restore()
		return nil, errors.Join(err, fmt.Errorf("the kernel found %d of %d huge pages", free, p.need))
	}
	return restore, nil
}

func readInt(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

// meminfo returns one field of /proc/meminfo in the unit it has there.
func meminfo(field string) (int, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), field+":"); ok {
			return strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", field)
}

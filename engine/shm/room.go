package shm

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// roomLeft is how much memory this process may still take, and who has no more: the host,
// or the control group that it runs in. A group that goes over its limit is killed and
// told nothing, so it is looked at before. What cannot be read limits nothing.
func roomLeft() (bytes uint64, where string) {
	bytes, where = available("/proc/meminfo", "MemAvailable:", 1<<10), "the host"
	for _, g := range memoryGroups() {
		if n := g.left(); n < bytes {
			bytes, where = n, "the control group "+g.dir
		}
	}
	return bytes, where
}

// memoryGroup is one control group with a limit of memory.
type memoryGroup struct{ dir, limit, used string }

const groupRoot = "/sys/fs/cgroup"

// memoryGroups are the group of this process and those above it, of either version.
func memoryGroups() (all []memoryGroup) {
	b, _ := os.ReadFile("/proc/self/cgroup")
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		g := memoryGroup{groupRoot, "memory.max", "memory.current"}
		switch f[1] {
		case "":
		case "memory":
			g = memoryGroup{groupRoot + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"}
		default:
			continue
		}
		root := g.dir
		for dir := path.Join("/", f[2]); ; dir = path.Dir(dir) {
			g.dir = path.Join(root, dir)
			all = append(all, g)
			if dir == "/" {
				break
			}
		}
	}
	return all
}

// left is the limit less what is used and not cheap to give back.
func (g memoryGroup) left() uint64 {
	limit, used := available(path.Join(g.dir, g.limit), "", 1), available(path.Join(g.dir, g.used), "", 1)
	if limit == math.MaxUint64 || used == math.MaxUint64 {
		return math.MaxUint64
	}
	stat := path.Join(g.dir, "memory.stat")
	for _, cache := range []string{"inactive_file ", "active_file "} {
		if n := available(stat, cache, 1); n < used {
			used -= n
		}
	}
	return limit - min(limit, used)
}

// available reads a number of a file, behind a word at the start of a line; MaxUint64 if
// there is none.
func available(file, word string, unit uint64) uint64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return math.MaxUint64
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), word); ok {
			var text string
			_, _ = fmt.Sscan(rest, &text)
			if n, err := strconv.ParseUint(text, 10, 64); err == nil {
				return n * unit
			}
		}
	}
	return math.MaxUint64
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"
)

// source is text that can be read again and again, by this process and by a child
// that is given the same flags: a file, the Go sources of this machine, or what a
// seeded generator makes up where there are none.
type source struct {
	name  string
	files []string
	seed  uint64 // used without files
	lines int64  // at most this many; 0 is all
}

const (
	generatedLines  = 1_000_000
	longestDemoLine = 128 << 10
)

// findSource picks what the demo stores: the file, else the toolchain's own source
// tree, else generated lines.
func findSource(ctx context.Context, file string, lines int64) (source, error) {
	if file != "" {
		if _, err := os.Stat(file); err != nil {
			return source{}, notFound{err}
		}
		return source{name: file, files: []string{file}, lines: lines}, nil
	}
	root := filepath.Join(goRoot(ctx), "src")
	files, err := goFiles(root)
	if err != nil {
		return source{}, err
	}
	if len(files) == 0 {
		return source{name: "generated lines (there is no Go toolchain here)", seed: 1, lines: min(max(lines, 0), generatedLines)}, nil
	}
	return source{name: "the Go sources in " + root, files: files, lines: lines}, nil
}

// goRoot asks the toolchain; "" when there is none.
func goRoot(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return os.Getenv("GOROOT")
	}
	return strings.TrimSpace(string(out))
}

// goFiles lists the Go files below root in a fixed order.
func goFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == root {
				return fs.SkipAll // no source tree
			}
			return err
		}
		if d.Type().IsRegular() && strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	slices.Sort(files)
	return files, err
}

// each calls f for every line; the slice is valid during the call.
func (s source) each(f func(n int64, line []byte) error) error {
	var n int64
	visit := func(line []byte) error {
		if s.lines > 0 && n >= s.lines {
			return io.EOF
		}
		n++
		return f(n, line)
	}
	err := s.visit(visit)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (s source) visit(visit func([]byte) error) error {
	if len(s.files) == 0 {
		return s.generate(visit)
	}
	for _, file := range s.files {
		if err := visitFile(file, visit); err != nil {
			return err
		}
	}
	return nil
}

func visitFile(file string, visit func([]byte) error) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := newLineReader(f, longestDemoLine)
	lines.skipLong = true // an archive written as one string literal is no line of text
	for {
		line, err := lines.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := visit(line); err != nil {
			return err
		}
	}
}

// generate makes up lines that look like a log's, the same ones for a seed.
func (s source) generate(visit func([]byte) error) error {
	rng := rand.New(rand.NewPCG(s.seed, 0))
	words := strings.Fields("accept bind close dial error flush get handle index join kill lock merge notify open put query read split timeout update verify write")
	var line []byte
	for i := range generatedLines {
		line = fmt.Appendf(line[:0], "host%03d %s", rng.IntN(500), words[rng.IntN(len(words))])
		for range 2 + rng.IntN(12) {
			line = fmt.Appendf(line, " %s=%d", words[rng.IntN(len(words))], rng.IntN(100_000))
		}
		if i%50 == 0 {
			line = line[:0]
		}
		if err := visit(line); err != nil {
			return err
		}
	}
	return nil
}

// wordOf is a line's key: its first word, or nil.
func wordOf(line []byte) []byte {
	letter := func(c byte) bool {
		return c == '_' || c >= 0x80 || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
	}
	start := slices.IndexFunc(line, letter)
	if start < 0 {
		return nil
	}
	end := slices.IndexFunc(line[start:], func(c byte) bool { return !letter(c) })
	if end < 0 {
		end = len(line) - start
	}
	return line[start : start+end : start+end]
}

// proof sums up a set of records so that two sets can be compared: the keyed ones
// in their order for each key, the others in any order.
type proof struct {
	records, bytes int64
	keys           map[string]*chain
	loose          uint64 // sum of the hashes of records without a key
	looseRecords   int64
}

// chain hashes the values of one key, each together with all before it. The source's
// own proof remembers every step, so that part of a chain can be recognised too.
type chain struct {
	n     int64
	last  uint64
	steps []uint64
}

func newProof() *proof { return &proof{keys: map[string]*chain{}} }

func (p *proof) add(key, value []byte, remember bool) {
	p.records++
	p.bytes += int64(len(key) + len(value))
	if key == nil {
		p.loose += xxh3.Hash(value)
		p.looseRecords++
		return
	}
	c := p.keys[string(key)]
	if c == nil {
		c = &chain{}
		p.keys[string(key)] = c
	}
	c.n++
	c.last = xxh3.HashSeed(value, c.last+1)
	if remember {
		c.steps = append(c.steps, c.last)
	}
}

// digest is one number for the whole set.
func (p *proof) digest() uint64 {
	d := p.loose
	for key, c := range p.keys {
		d += xxh3.HashStringSeed(key, c.last+uint64(c.n))
	}
	return d
}

// beginningOf checks that p holds, for every key, a beginning of what the source
// holds for it: nothing foreign, nothing twice, nothing out of order.
func (p *proof) beginningOf(whole *proof) error {
	for key, c := range p.keys {
		w := whole.keys[key]
		switch {
		case w == nil:
			return fmt.Errorf("a key %q that is not in the source", key)
		case c.n > w.n:
			return fmt.Errorf("%d records of key %q, the source has %d", c.n, key, w.n)
		case w.steps[c.n-1] != c.last:
			return fmt.Errorf("the first %d records of key %q are not the source's", c.n, key)
		}
	}
	if p.looseRecords > whole.looseRecords {
		return fmt.Errorf("%d records without a key, the source has %d", p.looseRecords, whole.looseRecords)
	}
	return nil
}

// equal checks that p is exactly the source.
func (p *proof) equal(whole *proof) error {
	if err := p.beginningOf(whole); err != nil {
		return err
	}
	if p.records != whole.records || p.digest() != whole.digest() {
		return fmt.Errorf("%d records with digest %016x, the source has %d with %016x", p.records, p.digest(), whole.records, whole.digest())
	}
	return nil
}

// spool copies standard input to a file, so that it can be read more than once.
func spool(in io.Reader, file string) (err error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 256<<10)
	if _, err := io.Copy(w, in); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	return w.Flush()
}

// cores is what a rate in a report has to be read with.
func cores() string { return plural(runtime.NumCPU(), "core") }

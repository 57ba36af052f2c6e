// Package cmd_test holds the house rules: which package may import which, who may
// touch the machine, and that every package says what it is. The tables are a
// statement of policy; changing one is a design change, never a way to fix a build.
package cmd_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/ringfence/ringfence"

// rank orders the packages: one imports only packages of a strictly lower rank,
// and equal ranks never meet.
var rank = map[string]int{
	"fence": 0, "ring": 0, "segfile/buddy": 0, "segfile/recfb": 0, "engine/wire/wirefb": 0,
	"segfile/record": 1, "segfile/disk": 1, "cp": 1,
	"segfile": 2, "engine/frontend": 2, "engine/shm": 2, "cp/host": 2, "engine/wire": 2,
	"engine/api":     2,
	"engine/store":   3,
	"engine/replica": 4, "engine/client": 4,
	"engine/coord": 5, "engine/server": 5,
	"engine":        6,
	"bench":         7,
	"cmd/ringfence": 8,
}

// testOnly packages import what they like and are imported by tests alone.
var testOnly = []string{"engine/sim", "segfile/disk/simdisk", "segfile/disk/disktest"}

// pure packages are given time and randomness as arguments and touch no machine,
// so that a simulator can run them as they are.
var pure = []string{"fence", "cp", "engine/frontend"}

// impure imports and calls; a whole package, or one of its functions.
var impure = []string{
	"os", "os/exec", "os/signal", "net", "net/http", "syscall", "golang.org/x/sys/unix", "runtime",
	"math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog",
	"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc",
	"time.NewTimer", "time.NewTicker", "time.Tick", "fmt.Print", "fmt.Printf", "fmt.Println",
}

// reserved imports, by prefix, and the only packages that may use them.
var reserved = map[string]string{
	"unsafe":                        "ring engine/shm",
	"golang.org/x/sys/unix":         "ring segfile/disk engine/shm engine/store engine/server cmd/ringfence",
	"github.com/iceber/iouring-go":  "ring",
	"github.com/google/flatbuffers": "segfile/record segfile/recfb engine/wire engine/wire/wirefb",
	"github.com/lni/dragonboat":     "cp/host",
}

// unreached lists what a package may not depend on, through any number of others.
var unreached = map[string][]string{
	"segfile/record":  {"ring", "segfile/disk", "cp/host"},
	"engine/frontend": {"ring", "segfile/disk", "segfile", "cp/host"},
	"cp":              {"ring", "segfile/disk", "segfile", "cp/host"},
	"engine/client":   {"ring", "segfile/disk", "segfile", "cp/host", "engine/store"},
}

// mappers may map what others may cut or leave without blocks, where an access is a
// fault and no error: the kernel's queues, and memory shared with a client. All others
// map memory of their own alone.
var mappers = []string{"ring", "engine/shm"}

// A house is what the rules look at: every package with its files and imports.
type house struct {
	fset  *token.FileSet
	files map[string][]*ast.File // by package path inside the module
}

func (h *house) add(pkg, file string, src any) error {
	f, err := parser.ParseFile(h.fset, file, src, parser.ParseComments)
	if err == nil {
		h.files[pkg] = append(h.files[pkg], f)
	}
	return err
}

// violations returns every broken rule, each with its place.
func (h *house) violations() []string {
	var bad []string
	for pkg, files := range h.files {
		if _, ok := rank[pkg]; !ok && !slices.Contains(testOnly, pkg) {
			bad = append(bad, fmt.Sprintf("package %s has no rank", pkg))
			continue
		}
		docs := 0
		for _, f := range files {
			if f.Doc != nil && !isGenerated(f) {
				docs++
			}
			bad = append(bad, h.importsOf(pkg, f)...)
			if !slices.Contains(mappers, pkg) {
				bad = append(bad, h.mappings(f)...)
			}
			if slices.Contains(pure, pkg) {
				bad = append(bad, h.impurities(f)...)
			}
		}
		if docs != 1 && !slices.ContainsFunc(files, isGenerated) {
			bad = append(bad, fmt.Sprintf("package %s has %d package comments, want 1", pkg, docs))
		}
		for _, far := range unreached[pkg] {
			if h.reaches(pkg, far, map[string]bool{}) {
				bad = append(bad, fmt.Sprintf("package %s reaches %s", pkg, far))
			}
		}
	}
	slices.Sort(bad)
	return bad
}

func (h *house) importsOf(pkg string, f *ast.File) (bad []string) {
	for _, spec := range f.Imports {
		imp := strings.Trim(spec.Path.Value, `"`)
		at := h.fset.Position(spec.Pos())
		if ours, ok := inModule(imp); ok && !slices.Contains(testOnly, pkg) {
			if r, known := rank[ours]; !known || r >= rank[pkg] {
				bad = append(bad, fmt.Sprintf("%s: %s (rank %d) may not import %s", at, pkg, rank[pkg], ours))
			}
		}
		for prefix, who := range reserved {
			if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && !slices.Contains(strings.Fields(who), pkg) &&
				!slices.Contains(testOnly, pkg) {
				bad = append(bad, fmt.Sprintf("%s: only %s may import %s", at, who, imp))
			}
		}
		if slices.Contains(pure, pkg) && slices.Contains(impure, imp) {
			bad = append(bad, fmt.Sprintf("%s: pure package %s imports %s", at, pkg, imp))
		}
	}
	return bad
}

// impurities finds goroutines and calls that read the clock or write to the world.
func (h *house) impurities(f *ast.File) (bad []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			bad = append(bad, fmt.Sprintf("%s: pure package starts a goroutine", h.fset.Position(n.Pos())))
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impure, x.Name+"."+n.Sel.Name) {
				bad = append(bad, fmt.Sprintf("%s: pure package uses %s.%s", h.fset.Position(n.Pos()), x.Name, n.Sel.Name))
			}
		}
		return true
	})
	return bad
}

// mappings finds files that are mapped: calls whose descriptor is not -1.
func (h *house) mappings(f *ast.File) (bad []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		name, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || name.Sel.Name != "Mmap" && name.Sel.Name != "MmapPtr" || len(call.Args) == 0 {
			return true
		}
		if fd, ok := call.Args[0].(*ast.UnaryExpr); !ok || fd.Op != token.SUB {
			bad = append(bad, fmt.Sprintf("%s: a file is mapped", h.fset.Position(n.Pos())))
		}
		return true
	})
	return bad
}

func (h *house) reaches(from, to string, seen map[string]bool) bool {
	if seen[from] {
		return false
	}
	seen[from] = true
	for _, f := range h.files[from] {
		for _, spec := range f.Imports {
			if ours, ok := inModule(strings.Trim(spec.Path.Value, `"`)); ok && (ours == to || h.reaches(ours, to, seen)) {
				return true
			}
		}
	}
	return false
}

func inModule(imp string) (string, bool) { return strings.CutPrefix(imp, module+"/") }

func isGenerated(f *ast.File) bool { return ast.IsGenerated(f) }

// TestHouse holds the whole tree against the rules.
func TestHouse(t *testing.T) {
	h := &house{token.NewFileSet(), map[string][]*ast.File{}}
	err := filepath.WalkDir("..", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(file, d.Name())
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		return h.add(path.Dir(strings.TrimPrefix(filepath.ToSlash(file), "../")), file, nil)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(h.files) < 4 {
		t.Fatalf("found only %d packages: the walk is broken", len(h.files))
	}
	for _, v := range h.violations() {
		t.Error(v)
	}
}

// skipDir leaves out what the go tool leaves out, and modules of their own.
func skipDir(file, name string) error {
	if file == ".." {
		return nil
	}
	if name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

// TestHouseRulesBite breaks each rule once and expects to hear of it.
func TestHouseRulesBite(t *testing.T) {
	const doc = "// Package p is documented.\npackage p\n"
	tests := []struct {
		name, pkg, src, want string
	}{
		{"upwards", "fence", doc + `import _ "` + module + `/segfile"`, "fence (rank 0) may not import segfile"},
		{"sideways", "segfile/record", doc + `import _ "` + module + `/segfile/disk"`, "may not import segfile/disk"},
		{"test package", "engine/store", doc + `import _ "` + module + `/segfile/disk/simdisk"`, "may not import segfile/disk/simdisk"},
		{"unranked", "util", doc, "package util has no rank"},
		{"unsafe", "engine", doc + `import _ "unsafe"`, "only ring engine/shm may import unsafe"},
		{"dragonboat", "engine", doc + `import _ "github.com/lni/dragonboat/v4"`, "only cp/host may import"},
		{"impure import", "cp", doc + `import _ "math/rand/v2"`, "pure package cp imports math/rand/v2"},
		{"clock", "cp", doc + "import \"time\"\nvar t = time.Now()", "pure package uses time.Now"},
		{"goroutine", "engine/frontend", doc + "func f() { go f() }", "pure package starts a goroutine"},
		{"undocumented", "ring", "package p\n", "package ring has 0 package comments"},
		{"mapped file (D08)", "cp/host", doc + "import \"syscall\"\nvar b, err = syscall.Mmap(3, 0, 4096, syscall.PROT_READ, syscall.MAP_SHARED)", "a file is mapped"},
		{"detached doc", "ring", "// Package p is cut off.\n\npackage p\n", "package ring has 0 package comments"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := &house{token.NewFileSet(), map[string][]*ast.File{}}
			if err := h.add(tt.pkg, "p.go", tt.src); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(h.violations(), "\n"); !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want it to say %q", got, tt.want)
			}
		})
	}
	t.Run("reach", func(t *testing.T) {
		h := &house{token.NewFileSet(), map[string][]*ast.File{}}
		for pkg, imp := range map[string]string{"engine/client": "engine/wire", "engine/wire": "segfile/disk", "segfile/disk": "fence"} {
			if err := h.add(pkg, "p.go", doc+`import _ "`+module+"/"+imp+`"`); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(h.violations(), "\n"); !strings.Contains(got, "package engine/client reaches segfile/disk") {
			t.Errorf("a dependency through another package went unseen: %q", got)
		}
	})
}

// TestReadmeNamesEveryPackage keeps the README's map of packages complete.
func TestReadmeNamesEveryPackage(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range rank {
		if _, err := os.Stat(filepath.Join("..", filepath.FromSlash(pkg))); err != nil {
			continue // ranked ahead of its first commit
		}
		if entries, _ := filepath.Glob(filepath.Join("..", filepath.FromSlash(pkg), "*.go")); len(entries) == 0 {
			continue
		}
		if !bytes.Contains(readme, []byte("`"+pkg+"`")) {
			t.Errorf("README.md does not mention package `%s`", pkg)
		}
	}
}

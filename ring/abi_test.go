package ring

import (
	"encoding/binary"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	abi "github.com/iceber/iouring-go/syscall"
)

// Where the ABI package puts what it is told, against the kernel's layout of an
// entry: its fields are private, so the compiler cannot look.
func TestEntryLayout(t *testing.T) {
	var e abi.SubmissionQueueEntry64
	e.PrepOperation(0x11, 0x22222222, 0x3333333333333333, 0x44444444, 0x5555555555555555)
	e.SetFlags(0x66)
	e.SetOpFlags(0x77777777)
	e.SetUserData(0x0123456789abcdef)
	e.SetBufIndex(0x9999)
	b := (*[64]byte)(unsafe.Pointer(&e))
	le := binary.LittleEndian
	if b[0] != 0x11 || b[1] != 0x66 || le.Uint32(b[4:]) != 0x22222222 || le.Uint64(b[8:]) != 0x5555555555555555 ||
		le.Uint64(b[16:]) != 0x3333333333333333 || le.Uint32(b[24:]) != 0x44444444 || le.Uint32(b[28:]) != 0x77777777 ||
		le.Uint64(b[32:]) != 0x0123456789abcdef || le.Uint16(b[40:]) != 0x9999 {
		t.Fatalf("% x", b[:])
	}
	if entryUser(&e) != 0x0123456789abcdef {
		t.Fatal(entryUser(&e))
	}
	c := cqe(0x0123456789abcdef, -5)
	if c.UserData() != 0x0123456789abcdef || c.Result() != -5 {
		t.Fatalf("%+v", c)
	}
}

// One helper alone turns a pointer into a number for a request, nothing links to
// private symbols, and of the ABI package nothing but the ABI is used.
func TestF01F03SourceRules(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	number := regexp.MustCompile(`uint(64|ptr)\(\s*uintptr\(unsafe|uintptr\(unsafe`)
	helper := 0
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if strings.HasPrefix(i.Path.Value, `"github.com/iceber/iouring-go`) && i.Path.Value != `"github.com/iceber/iouring-go/syscall"` {
				t.Errorf("%s imports %s, which does not link", name, i.Path.Value)
			}
		}
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		if strings.Contains(string(src), "go:"+"linkname") {
			t.Errorf("%s links to private symbols", name)
		}
		for line := range strings.Lines(string(src)) {
			// A system call's own argument lives as long as the call.
			if number.MatchString(line) && !strings.Contains(line, "Syscall") {
				helper++
			}
		}
	}
	if helper != 1 {
		t.Errorf("%d places turn a pointer into a number, want one: addressOf", helper)
	}
}

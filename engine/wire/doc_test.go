package wire

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The tables in the package's page are those of the code.
func TestDocHasEveryKeyAndCode(t *testing.T) {
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^//\t *(\d+) ([A-Z]\w+) +(\w+) +(\w+)`).FindAllStringSubmatch(string(page), -1) {
		keys[strings.Join(row[1:], " ")] = true
	}
	served := 0
	for k, x := range exchanges {
		if x.name == "" {
			continue
		}
		served++
		reply := "none"
		if x.reply != nil {
			reply = x.reply.name
		}
		if row := fmt.Sprintf("%d %s %s %s", k, x.name, x.request.name, reply); !keys[row] {
			t.Errorf("doc.go does not have %q among its keys", row)
		}
	}
	codes := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^//\t *(\d+|0x\w+) ([a-z_]+)( |$)`).FindAllStringSubmatch(string(page), -1) {
		codes[row[1]+" "+row[2]] = true
	}
	for c, name := range codeNames {
		number := fmt.Sprint(uint16(c))
		if c.Retryable() {
			number = fmt.Sprintf("%#x", uint16(c))
		}
		if !codes[number+" "+name] {
			t.Errorf("doc.go does not have %q among its codes", number+" "+name)
		}
	}
	if len(keys) != served || len(codes) != len(codeNames) {
		t.Errorf("doc.go has %d keys of %d and %d codes of %d", len(keys), served, len(codes), len(codeNames))
	}
}

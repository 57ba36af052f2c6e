package host

import (
	"log"
	"os"
	"testing"
)

// A program that links this package keeps its standard log.
func TestStandardLogIsTheProgramsOwn(t *testing.T) {
	if log.Writer() != os.Stderr || log.Flags() != log.LstdFlags || log.Prefix() != "" {
		t.Errorf("the standard log writes to %T with flags %#x and prefix %q", log.Writer(), log.Flags(), log.Prefix())
	}
}

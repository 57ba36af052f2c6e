package host

import (
	"log"
	"os"
	"testing"
)

// A program that links this package keeps its standard log.
func TestStandardLogIsTheProgramsOwn(t *testing.T) {
	// Another test may have put another file in the place of os.Stderr meanwhile.
	if _, file := log.Writer().(*os.File); !file || log.Flags() != log.LstdFlags || log.Prefix() != "" {
		t.Errorf("the standard log writes to %T with flags %#x and prefix %q", log.Writer(), log.Flags(), log.Prefix())
	}
}

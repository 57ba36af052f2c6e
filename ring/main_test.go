package ring

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

// Some tests need a process of their own, with limits and filters that cannot be
// taken off again. The test binary runs itself with this variable naming the part.
const childEnv = "RING_TEST_CHILD"

var children = map[string]func() error{}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](); err != nil {
			fmt.Println("FAIL:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// rounds is how often a loop runs: few by default, many with RINGFENCE_LONG set.
func rounds(few, many int) int {
	if on, _ := strconv.ParseBool(os.Getenv("RINGFENCE_LONG")); on {
		return many
	}
	return few
}

// needRing skips, loudly, where the kernel refuses io_uring.
func needRing(t testing.TB) {
	t.Helper()
	if p := Probe(); !p.Usable {
		t.Skipf("SKIPPED, NOT TESTED: this test needs io_uring: %s", p.Reason)
	}
}

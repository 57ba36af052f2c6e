package disk_test

import (
	"testing"

	"github.com/ringfence/ringfence/ring"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/disktest"
)

// opener makes trees in the temporary directory.
func opener(o disk.Options) func(t *testing.T) func() (disk.Disk, error) {
	o.ArenaBytes = 4 << 20
	return func(t *testing.T) func() (disk.Disk, error) {
		dir := t.TempDir()
		return func() (disk.Disk, error) { return disk.Open(dir, o) }
	}
}

func TestContractOfPool(t *testing.T) { disktest.Run(t, opener(disk.Options{Engine: "pool"})) }

func TestContractOfIOUring(t *testing.T) {
	if report := ring.Probe(); !report.Usable {
		t.Skip("SKIPPED, io_uring is not tested here: ", report.Reason)
	}
	disktest.Run(t, opener(disk.Options{Engine: "io_uring"}))
}

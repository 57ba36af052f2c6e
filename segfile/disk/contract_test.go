package disk_test

import (
	"testing"

	"github.com/ringfence/ringfence/ring"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/disktest"
)

// needRing skips loudly where io_uring is refused.
func needRing(t *testing.T) {
	if report := ring.Probe(); !report.Usable {
		t.Skip("SKIPPED, io_uring is not tested here: ", report.Reason)
	}
}

// opener makes trees in the temporary directory.
func opener(o disk.Options, change func(disk.Disk)) func(t *testing.T) func() (disk.Disk, error) {
	o.ArenaBytes = 4 << 20
	return func(t *testing.T) func() (disk.Disk, error) {
		dir := t.TempDir()
		return func() (disk.Disk, error) {
			d, err := disk.Open(dir, o)
			if err == nil && change != nil {
				change(d)
			}
			return d, err
		}
	}
}

func TestContractOfIOUring(t *testing.T) {
	needRing(t)
	disktest.Run(t, opener(disk.Options{Engine: "io_uring"}, nil))
}

func TestContractOfPool(t *testing.T) {
	disktest.Run(t, opener(disk.Options{Engine: "pool"}, nil))
}

func TestContractOfBufferedIOUring(t *testing.T) {
	needRing(t)
	disktest.Run(t, opener(disk.Options{Engine: "io_uring"}, disk.MakeBuffered))
}

func TestContractOfBufferedPool(t *testing.T) {
	disktest.Run(t, opener(disk.Options{Engine: "pool"}, disk.MakeBuffered))
}

func TestContractOfPoolWithoutDsync(t *testing.T) {
	disktest.Run(t, opener(disk.Options{Engine: "pool", Workers: 2}, disk.MakeWithoutDsync))
}

package simdisk_test

import (
	"testing"

	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/ringfence/ringfence/segfile/disk/disktest"
	"github.com/ringfence/ringfence/segfile/disk/simdisk"
)

func TestContract(t *testing.T) {
	disktest.Run(t, func(t *testing.T) func() (disk.Disk, error) {
		tree := simdisk.New(simdisk.Options{Seed: 1})
		return func() (disk.Disk, error) { return tree.Reopen(), nil }
	})
}

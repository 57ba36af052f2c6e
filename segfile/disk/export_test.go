package disk

// For tests outside the package.

// MakeBuffered makes a disk work as one whose file system refuses direct I/O.
func MakeBuffered(d Disk) { d.(*osDisk).info.Direct, d.(*osDisk).info.Align = false, 0 }

// MakeWithoutDsync makes a disk's kernel one that does not know RWF_DSYNC.
func MakeWithoutDsync(d Disk) { d.(*osDisk).calls.(*linuxCalls).noDsync.Store(true) }

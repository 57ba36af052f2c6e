package disk

// For tests outside the package.

// MakeBuffered makes a disk work as one whose file system refuses direct I/O.
func MakeBuffered(d Disk) { d.(*osDisk).info.Direct, d.(*osDisk).info.Align = false, 0 }

// Registered says whether a file is in the table of an io_uring.
func Registered(f File) bool {
	for i := range f.(*osFile).places {
		if p := f.(*osFile).places[i].Load(); p != nil && p.slot >= 0 {
			return true
		}
	}
	return false
}

// MakeWithoutDsync makes a disk's kernel one that does not know RWF_DSYNC.
func MakeWithoutDsync(d Disk) { d.(*osDisk).calls.(*linuxCalls).noDsync.Store(true) }

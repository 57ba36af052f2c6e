// Package simdisk is a disk in memory for tests. It does what it is told like a
// real one, and forgets like a real one: a power cut ([Disk.Crash]) keeps what the
// contract of package disk promises and, of everything else, whatever the random
// source decides.
//
// A [Disk] is one process's view of a tree; [Disk.Reopen] and [Disk.Kill] give
// further views, as a second or a restarted process has them. A [Fault] makes
// chosen operations fail, a [Hold] keeps queue operations in flight, CutAfter ends
// the power supply in the middle of an operation, Rot damages what is stored. Trace,
// Counts and the faults' own counters prove to a test that what it planned took
// place.
//
// What a crash may leave:
//   - Every 512-byte sector written and not yet durable holds what was durable or
//     any later state of it, each sector for itself. Operations in flight count as
//     not durable, whatever they asked for.
//   - The file's size is the durable one or any later one. Bytes between a durable
//     and a later end read as zeros or as what was written there.
//   - A name change (create, mkdir, remove, rename) that no SyncDir covers happened
//     or not, each for itself, but no change of a name or of a file survives without
//     the earlier ones of that name and that file. So a rename is atomic: exactly one
//     of the two names has the file.
//   - SyncDir of the directory that a rename came from does not prove the rename.
//   - After a failed sync, a later one says nothing about what the failed one covered.
//
// Everything random comes from one source, so a test that drives the disk from one
// goroutine sees the same disk again from the same seed. With more goroutines it is
// safe, and as deterministic as they are.
package simdisk

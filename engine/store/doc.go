// Package store keeps the segments of one node.
//
// A [Store] owns one directory tree, which it reaches through a disk.Disk. A [Segment]
// is one copy of one segment: open while its primary appends, fenced for good
// afterwards. An [Append] is one frame on its way to disk; it is answered once it, and
// everything before it in its segment, is durable. A [Scanner] reads a segment's records
// up to the commit mark.
//
// # The path of an append
//
// [Segment.Append] puts the frame on its segment's queue (append.go). Every shard has two
// roles. Whoever holds the submitter role takes what waits, assigns offsets, drops what a
// producer sent before, packs small frames into one flush or takes a large one from where
// it lies, and gives the writes to the disk (flush.go). Whoever holds the reaper role
// waits for the disk, moves each segment's commit mark over the flushes that have
// finished without a gap, and answers their appends (shard.go).
//
// Each role is held by one goroutine at a time, whichever needs it (driver.go). So a lone
// producer does its own I/O without handing over to another goroutine; when nobody waits,
// a resident goroutine per shard reaps. Group commit needs no timer: what arrives while
// flushes are in flight goes into the next one.
//
// # Promises
//
//   - An append is answered without an error only after its bytes, and all bytes before
//     them in the segment, are durable.
//   - After a failed or short write, nothing more is written to that copy and nothing is
//     retried: everything queued on it is answered with [ErrStorage] or [ErrOutOfSpace].
//     A fence then closes it at the last acknowledged record.
//   - If a frame lies in memory that another process changes while it is written, nothing
//     of it is stored, and a void frame takes its place (foreign.go). No other append is
//     affected.
//   - Readers see only what is below the commit mark and take no lock against the writer.
//     A record is shown only after record.Verify accepted its frame. Frames that are
//     passed on as they lie in a fenced file ([Scanner.Stretch]) are for the receiver to
//     verify.
//   - A segment that an earlier process opened is never appended to again. Open recovers
//     and fences it (recover.go), but only after it has looked at the whole tree and found
//     nothing that it must not touch.
//   - A segment that falls quiet is proved to its end (quiet.go): whatever a disk loses of
//     it later is noticed at the next start. Package segfile says what can be noticed
//     while a segment is being written to.
//   - When the file system is full, appends are refused and retired files are given back.
//     Reads, fences and deletes go on, and appends resume by themselves.
//   - A file that nobody knows is set aside, never deleted (quarantine.go).
package store

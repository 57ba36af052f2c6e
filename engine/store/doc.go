// Package store keeps the segments of one node.
//
// A [Store] owns one directory tree through a disk.Disk. A [Segment] is one copy
// of one segment: open while its primary appends, fenced for good afterwards. An
// [Append] is one frame on its way to disk; it is answered once it is durable and
// everything before it in its segment is. A [Scanner] reads a segment's records
// up to the commit mark.
//
// # The path of an append
//
// [Segment.Append] puts the frame on its segment's queue (append.go). Whoever holds
// the shard's submitter role takes what waits, assigns offsets, trims what a
// producer sent before, packs small frames into one flush or takes a large one
// from where it lies, and hands the writes to the disk (flush.go). Whoever holds the
// reaper role waits for the disk, moves each segment's commit mark over the
// contiguous prefix of finished flushes and answers its appends (shard.go).
// Both roles go to whichever goroutine needs them, one at a time each, so that a
// lone producer does its own I/O without a hand-over; a resident goroutine per
// shard reaps when nobody waits. Group commit needs no timer: what arrives while
// flushes are in flight goes into the next one.
//
// # What it promises
//
//   - An append is answered without an error only after its bytes, and all bytes
//     before them in the segment, are durable.
//   - After a failed or short write nothing more is written to that copy and nothing
//     is retried; everything queued on it is answered with [ErrStorage] or
//     [ErrOutOfSpace]. A fence then closes it at the last acknowledged record.
//   - Of a frame in memory that another process changes while it is written nothing is
//     stored and nobody else hears (foreign.go): a void frame takes its place.
//   - Readers see only what is below the commit mark, take no lock against the
//     writer, and every frame passes record.Verify before a record is shown. Frames
//     that are passed on as they lie in a fenced file ([Scanner.Stretch]) are for
//     somebody else to verify.
//   - A segment opened by an earlier process is never appended to again: Open
//     recovers and fences it (recover.go), after it looked at the whole tree and
//     found nothing that it must not touch.
//   - A segment that falls quiet is proved to its end (quiet.go): what a disk loses of it
//     later is missed at the next start, whatever is left. Of one that is written to see
//     package segfile.
//   - On a full file system appends are refused, and retired files are given back;
//     reads, fences and deletes go on, and appends by themselves.
//   - A file that nobody knows is set aside, never deleted (quarantine.go).
package store

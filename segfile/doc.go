// Package segfile keeps segments in files: one file for each copy of a segment.
//
// A [Writer] is the open file of a new segment: whoever owns it plans flushes, writes
// them to its File and reports them with [Writer.Advance]. A [Reader] reads a segment's
// frames. A [Pool] gives files to new segments and takes those of deleted ones back. A
// [ProducerTable] remembers how far each producer has come. [Recover] says what a file
// holds after a crash, and [Verify] reads a whole file and names every byte that is not
// as it should be.
//
// One goroutine at a time owns a Writer or a ProducerTable. Everything else here may be
// shared; [Writer.Find] and [Writer.FindTime] may run beside the owner.
//
// # Promises
//
//   - A segment gets its name only after its header, its empty latch and the table of
//     producers it starts from are durable. So no file with a segment's name was ever
//     half made.
//   - A block that was written is never written again, with four exceptions: the latch,
//     once; frames that turn void, before anything from them on counts as durable; the
//     pointer to the last checkpoint, every version of which is true; and, when a store
//     starts, the unproven end of a file that an earlier process left open. That end is
//     written once more before the fence, with the very bytes that recovery read there,
//     because a fence is for good and a sync would not do: a sync that follows a failed
//     one may succeed without having made the bytes durable. A power cut in the middle
//     leaves every sector as it was, so acknowledged bytes among them stay what they are.
//   - A fenced file says for ever where it ends. A latch that is neither empty nor valid
//     is damage, never an open file.
//   - Recovery returns every record that was acknowledged and none that was not sent. By
//     itself it changes nothing, and it answers the same when asked again. What it
//     cannot tell from damage it reports, and leaves where it is: in the file, between
//     the last frame and the footer.
//
// # What it cannot promise
//
// It cannot notice everything that a device loses of an open file after having confirmed
// it. What was durable is on record in two places: each frame says what was durable when
// it was planned, and the pointer says what was durable when it was last moved. The
// pointer moves after every half of PoolOptions.CheckpointBytes, and when the segment
// falls quiet ([Writer.Quiet]). A loss before the place on record is always noticed,
// whatever is left of the file. Behind it, while the segment is being written to:
//
//   - Flushes at the very end that now read as zeros, or as bytes of the file's earlier
//     life, look as if they had never been written. If a part of them is there, it is
//     reported, but cannot be told from a flush that a crash tore.
//   - Frames behind a loss are searched for over twice the distance that the segment's
//     writes ran ahead of what was durable (at least 1 MiB), and as far as the pointer's
//     next move. Beyond that only some places are searched: 1 MiB apart where frames are
//     small, 16 MiB where they are large (search.go). So a longer loss, with the frames
//     behind it, is overlooked only if all these frames lie between two such places. And
//     they lie that far from the pointer only if writes ran ahead further than ever
//     before while it was moving, or if a power cut took it back to an earlier place:
//     its moves are not synced while the segment is being written to.
//
// To know more, a start would have to read every open file whole: pools fill files with
// zeros beforehand and reuse old ones, so all their blocks are written, and no file
// system can tell which of them this segment wrote. A footer settles the matter for good,
// and so would another copy.
//
// format.go describes the bytes, recover.go what a crash may leave, void.go what happens
// to a frame that changed while it was written.
package segfile

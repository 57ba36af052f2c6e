// Package segfile keeps segments in files: one file for each copy of a segment.
//
// A [Writer] is the open file of a new segment; whoever owns it plans flushes,
// writes them to its File and tells it with [Writer.Advance]. A [Reader] reads a
// segment's frames, a [Pool] gives files to new segments and takes those of
// deleted ones back, a [ProducerTable] remembers how far each producer has come.
// [Recover] says what a file holds after a stop that nobody announced, and
// [Verify] reads all of a file and names every byte that is not as it should be.
//
// One goroutine at a time owns a Writer or a ProducerTable. Anything else here may
// be shared; [Writer.Find] and [Writer.FindTime] may run beside the owner.
//
// What it promises:
//   - a segment lives under its name only after its header, its empty latch and
//     the table of producers it starts from are durable, so no file under a
//     segment's name was ever half made;
//   - a block that was written is never written again, but for the latch, once, for
//     frames that turn void before anything from them on counts as durable, and for the
//     pointer to the last checkpoint, of which any version is true. Besides, what nothing
//     proves to be durable at the end of a file that a process left open is written once
//     more before the fence, when a store starts, with the very bytes that recovery read
//     there: a fence is for good, and a sync would not make it so where one before it had
//     failed. A power cut in that leaves every sector as it was, so acknowledged bytes
//     among them stay what they are;
//   - a fenced file says where it ends for ever; a latch that is neither empty nor
//     valid is damage, never an open file;
//   - recovery gives every record back that was acknowledged, none that was not
//     sent, changes nothing by itself, and answers the same when asked again. What
//     it cannot tell from damage it reports and leaves where it lies, in the file,
//     between the last frame and the footer.
//
// What it cannot promise is to miss everything that a device loses of an open file after
// it had confirmed it. Every frame tells what was durable when it was planned, and the
// pointer what was when it was moved: when so much more was, half of
// PoolOptions.CheckpointBytes, and when the segment fell quiet ([Writer.Quiet]). A loss
// before that is known, whatever is left. Behind it, for as long as a segment is written to:
//   - the last flushes, with nothing behind them, that are zeros or the bytes of the file's
//     earlier life are as if they had never been written. If something of them is there, that
//     is reported, and cannot be told from a flush that a crash tore.
//   - frames behind a loss are looked for twice as far as the segment's writes ran ahead of
//     what was durable, a MiB at least, and as far as the next move of the pointer; from there
//     on at places that are 1 MiB apart where frames are small, and 16 MiB where they are
//     large (search.go). A longer loss is overlooked, with the frames behind it, only if those
//     all lie between two of these places; and that far from the pointer they lie only if
//     writes ran ahead further than ever before while it was on its way, or if a power cut
//     took it back to where it was before: moves of it while a segment is written to are not
//     synced.
//
// To know more a start would have to read all of every open file: pools prepare files with
// zeros and use them again, so all their blocks are written, and no file system can tell
// which of them this segment wrote. A footer settles it for good, and so does another copy.
//
// format.go describes the bytes, recover.go what a crash may leave, void.go what is
// done about a frame that changed while it was written.
package segfile

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
// format.go describes the bytes, recover.go what a crash may leave, void.go what is
// done about a frame that changed while it was written.
package segfile

// Package record turns records into frames and frames back into records.
//
// A [Record] is a key, a value, headers and a time. A batch is one or more records
// of one producer as a flatbuffer (package recfb has its schema), built by a
// [Builder] in memory that the caller owns. A frame is a batch behind a header of
// [HeaderSize] bytes, and the same frame lies in segment files, goes to followers
// and to consumers; whoever stores it only puts a [Stamp] on the header. A mark is
// a frame without records whose payload belongs to package segfile; a void frame stands
// where a frame was not stored after all, so that offsets and positions stay. A lent frame
// was written from memory that its producer could change, and says so.
//
// [Verify] is the one gate that foreign bytes pass: from a file, a socket or
// another process's memory. It takes time linear in the frame and the records it
// announces, believes nothing, never panics and never reads outside what it was
// given; the [Batch] it answers can be read without further checks. [ParseHead]
// and [Check] look at the header, or at header and checksum, and say nothing of
// the records.
//
// Nothing here starts a goroutine, reads a clock or keeps memory it was given. A
// Builder, a Scratch and the Batch that uses it have one user at a time; a Batch
// whose memory nobody changes may be shared.
//
// header.go describes the frame header, layout.go the payload.
package record

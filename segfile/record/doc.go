// Package record turns records into frames and frames back into records.
//
// A [Record] is a key, a value, headers and a time. A batch is one or more records of one
// producer as a flatbuffer (package recfb has its schema), built by a [Builder] in memory
// that the caller owns. A frame is a batch behind a header of [HeaderSize] bytes. The same
// frame lies in segment files and goes to followers and consumers; whoever stores it only
// stamps the header ([Stamp]).
//
// Three kinds of frames are special. A mark has no records; its payload belongs to package
// segfile. A void frame stands where a frame was not stored after all, so that offsets and
// positions stay what they are. A lent frame was written from memory that its producer could
// change meanwhile, and says so.
//
// [Verify] is the one gate for foreign bytes: from a file, a socket or another process's
// memory. It takes time linear in the frame and the records it announces, believes nothing,
// never panics and never reads outside what it was given. The [Batch] that it returns can be
// read without further checks. [ParseHead] and [Check] look at the header, or at the header
// and the payload's checksum, and say nothing about the records.
//
// Nothing here starts a goroutine, reads a clock or keeps memory that it was given. A
// Builder, a Scratch and the Batch that uses it are not safe for concurrent use; a Batch
// whose memory nobody changes may be shared.
//
// header.go describes the frame header, layout.go the payload.
package record

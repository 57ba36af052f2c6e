// Package wire is the codec of Ringfence's wire protocol: frames, messages, keys and
// error codes.
//
// A frame is a [Head], a message and, with some messages, record frames as package
// segfile/record lays them out. [ParseHead] and [Verify] are what foreign bytes pass;
// [Request] and [Reply] read messages that passed; an [Encoder] writes frames.
//
// Nothing here does I/O, starts a goroutine or keeps memory that it was given.
package wire

// Package shm is memory that an engine shares with one client on the same host: how it is
// laid out, made, handed over and waited on, for both sides.
//
// A [Host] is the engine's side and a [Guest] the client's. The client puts record frames
// into the arena and submits them; the engine takes the submissions and answers with
// completions. Everything else the two have to say goes over the Unix socket through which
// the memory was handed over ([Send], [Receiver]). The end of the socket is the end of the
// other side: there is no heartbeat, and processes are not tracked by their number ([PeerOf]
// tells whose a process is).
//
// What the client reads does not lie in this memory. A page of a closed segment may come as
// a descriptor of its file ([Receiver]), which the client reads like any file: then the page
// cache is the memory that both share. Package wire says how.
//
// The engine trusts nothing in the memory. It copies the sizes once, when the memory is
// made, and each submission once, into private memory, and then checks it. Whatever breaks a
// rule is a [PeerError], and ends that client. This package says nothing about the bytes of
// a frame: the client may change them at any time, so whoever needs them to stay the same
// copies them first. The memory is sealed and cannot shrink, and from the first submission
// on nobody can take pages out of it, so the engine's accesses never fault.
//
// A client that dies leaves nothing to repair: only the client knows which parts of the arena
// are in use, and that goes with it. An engine that dies leaves the client with memory in
// which nobody answers any more; the client keeps it until it lets go of it.
//
// # Layout
//
// Integers are little-endian words of 8 or 4 bytes, which are read and written whole. All
// places follow from two numbers, the size of the arena in bytes and the number of slots,
// which are agreed on over the socket.
//
//	arena        any number of blocks of 4096 bytes
//	control      4096 bytes
//	submissions  slots of 64 bytes, a power of two of them
//	completions  as many
//
//	control
//	off size field
//	  0    8 magic    "RFSHARED"
//	  8    4 version  1
//	 12    4 slots
//	 16    8 arena    bytes
//	 24    8 start    position of the first submission, and of the first completion
//	 32    8 engine   incarnation of the engine that made it
//	128    4 host     1: the engine sleeps on this word; who wakes it makes it 0
//	256    4 guest    the same of the client
//
//	submission, by the client
//	off size field
//	  0    8 turn     position + 1, stored last
//	  8    4 id       of the request, chosen by the client
//	 12    4 producer handle
//	 16    8 offset   of the frame in the arena, a multiple of 4096
//	 24    8 length   of the frame, in bytes
//
//	completion, by the engine
//	off size field
//	  0    8 turn     position + 1, stored last
//	  8    4 id       of the request
//	 12    4 range
//	 16    8 first    offset of the frame's first record
//	 24    8 last     of its last one
//	 32    8 repeats  how many of its records were stored before
//
// Positions count up from start and wrap at 2^64; position p lies in the slot with the index
// p modulo the number of slots. A slot holds what belongs to position p once its turn is
// p + 1; before that, its turn is p + 1 less the number of slots. The client never has more
// unanswered submissions than there are slots, and takes each answer. So neither side ever
// waits for a free slot or needs to know how far the other one has come.
package shm

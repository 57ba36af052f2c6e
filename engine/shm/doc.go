// Package shm is memory that an engine shares with one client on the same host: how it is
// laid out, made, handed over and waited on, for both sides.
//
// A [Host] is the engine's side of it and a [Guest] the client's. The client puts record
// frames in the arena and submits them; the engine takes submissions and answers with
// completions. Everything else the two have to say goes over the Unix socket that the
// memory came through ([Send], [Receiver]), whose end is the end of the other side: there
// is no heartbeat, and no process is known by its number ([PeerOf] tells whose it is).
//
// What the client reads does not lie in the memory. A page of a closed segment may come as
// a descriptor of its file ([Receiver]), which the client reads as any file: the page cache
// is the memory that both share then. Package wire tells how.
//
// The engine believes nothing that lies in the memory. The sizes are copied once, when it
// is made; a submission is copied once into private memory and then checked, and whatever
// breaks a rule is a [PeerError], after which the engine is done with that client. Of a
// frame's bytes nothing is said: the client may change them at any time, so whoever needs
// them to stay copies them first. The memory is sealed and cannot shrink, and from the
// first submission on nobody can take pages out of it, so no access of the engine's faults.
//
// A client that dies leaves nothing to repair: who owns which part of the arena is known to
// the client alone, and goes with it. An engine that dies leaves a client with memory that
// nobody answers in, which is the client's until it lets go of it.
//
// # Layout
//
// Integers are little-endian, and words of 8 or 4 bytes that are read and written whole.
// The two numbers that all places come from, bytes of the arena and slots, are agreed on
// over the socket.
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
// Positions count up from start and wrap at 2^64; that of a slot is its index modulo the
// number of slots. A slot holds what belongs to position p once its turn is p + 1; before
// that it is p + 1 less the number of slots. The client never has more submissions
// unanswered than there are slots, and takes each answer: so neither side ever waits for a
// free slot, or looks at how far the other one is.
package shm

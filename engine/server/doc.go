// Package server serves an engine to clients over framed TCP, as package engine/wire
// lays the frames out, and to clients of its host through memory that both share, as
// package engine/shm lays that out.
//
// A [Server] accepts connections from any number of listeners. A connection starts with
// a hello, logs in where the server wants that, opens producers and consumers, which
// are its own and end with it, and sends requests without waiting for their answers,
// which come in any order.
//
// # What runs where
//
// A connection has one goroutine that reads its socket and one that writes it. The
// reader takes a frame's head, holds it against the limits before it takes memory for
// more, and reads the record frames of producers into memory of the engine, from where
// they go to the device. Whatever else a request may wait for runs in goroutines of
// its own: at most a few for a connection's requests about topics and one for each
// consumer, so that none of them holds up the producers behind it. The
// writer owns what is to be sent. Nobody waits for it but those who fetch records, who
// keep a page's memory, or its file, until it is written. What lies in a file goes to
// other machines by sendfile, through TLS and to this one in pieces, and to a client that
// shares memory and asks for it as a descriptor (descriptor.go).
//
// The connection of a client that shares memory has one goroutine more, which takes frames
// from that memory, copies them to memory of the engine, or lends large ones of a client
// that is trusted, and hands them over itself. Who
// hears from the engine that a frame is durable tells the client there; errors, which have words, go
// over the socket. The memory lives as long as the connection.
//
// A coordinator shares the ranges of topics out among the members of groups. It runs in
// whoever asks, under a lock.
//
// # What holds
//
//   - Every request that was read whole is answered once, on its own connection or not
//     at all, also when the connection ends in good order.
//   - Frames of one producer reach the engine in the order they came in. Once one of a
//     producer that numbers its records was refused, so are all behind it: stored
//     without it they would make it look like a repeat.
//   - The memory of a connection is bounded, and so is that of all together. What a
//     peer announces costs nothing before it comes.
//   - A range is one member's at a time: another gets it when the one before has let it
//     go, left, or was not heard of for a session, and no commit of that one is under way.
//   - A peer that stops reading, sends slowly or falls silent loses its connection and
//     holds up nobody else.
//   - Foreign bytes are verified before they are looked at; none makes the server panic.
//     Those that their sender can still change are copied first, or, from one that is
//     trusted, looked at again once they are written.
package server

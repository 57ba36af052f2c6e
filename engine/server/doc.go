// Package server serves an engine to clients over framed TCP (package engine/wire describes
// the frames), and to clients of its own host through shared memory (package engine/shm
// describes that).
//
// A [Server] accepts connections from any number of listeners. A connection starts with a
// hello, logs in if the server asks for that, and opens producers and consumers, which end
// with it. It sends requests without waiting for the answers, which come in any order.
//
// # What runs where
//
// A connection has one goroutine that reads its socket and one that writes to it.
//
// The reader takes a frame's head and checks it against the limits before it takes memory
// for more. It reads the record frames of producers into memory of the engine, from where
// they go to the device. Whatever else a request may have to wait for runs in goroutines of
// its own, so that it does not hold up the producers behind it: a few at most for the
// connection's requests about topics, and one for each consumer.
//
// The writer owns what is to be sent. Only those who fetch records wait for it, because they
// keep a page's memory, or its file, until it is written. What lies in a file goes to other
// machines by sendfile, through TLS and to this machine in pieces, and as a descriptor to a
// client that shares memory and asks for that (descriptor.go).
//
// The connection of a client that shares memory has a third goroutine. It takes frames from
// that memory, copies them to memory of the engine, or lends the engine the large frames of a
// trusted client, and hands them over. Whoever learns from the engine that a frame is durable
// tells the client in the shared memory; errors, which have text, go over the socket. The
// memory lives as long as the connection.
//
// A coordinator shares the ranges of topics out among the members of groups. It has no
// goroutine: it runs in its callers, under a lock.
//
// # Promises
//
//   - Every request that was read as a whole is answered once, on its own connection or not
//     at all, even when the connection ends in good order.
//   - Frames of one producer reach the engine in the order in which they came. Once a frame
//     of a producer that numbers its records is refused, all frames behind it are: if they
//     were stored without it, it would look like a repeat when it is sent again.
//   - The memory of a connection is bounded, and so is that of all connections together. What
//     a peer announces costs nothing before it arrives.
//   - A range is read by one member at a time. Another one gets it when the member before has
//     let it go, has left, or was silent for a session, and none of its commits of that range
//     is under way.
//   - A peer that stops reading, sends slowly or falls silent loses its connection, and holds
//     up nobody else.
//   - Foreign bytes are verified before they are used; none makes the server panic. Bytes
//     that their sender can still change are copied first, or, from a trusted sender, checked
//     again once they are written.
package server

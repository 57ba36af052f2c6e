// Package client reaches a Ringfence server over TCP, TLS, a Unix socket or shared memory. It
// has the types and the promises of package engine: a program that changes from one to the
// other changes only the line that opens the log.
//
// # Nouns
//
// A [Client] is a server's address with two connections, from [Dial] to Close: one for
// producers and one for everything else, so that a page on its way never delays an
// acknowledgement. After [DialShm], the first of them shares memory with the server, in which
// batches are built; over the other come descriptors of closed segments' files, which
// consumers read themselves. A [Producer] sends records to one topic: one at a time, waiting
// for each; one at a time with a callback; or many at once in a [Batch]. A [Consumer] reads
// one topic.
//
// # Promises
//
//   - A nil error from Produce, or in a callback, means that the server has the record on
//     stable storage.
//   - A lost connection is made again, with growing pauses. A producer then sends again, in
//     order, what was not answered, and the server recognises what it had: a record is
//     stored once, and records with the same key keep their order. A producer that is
//     NotIdempotent reports what was under way as unknown instead.
//   - Records gather by range, and producers follow splits and merges. A batch that such
//     a change overtakes is taken apart by the server.
//   - The records of a producer with an ID of its own do not gather by range: a later run
//     with that ID must give each record the same number again, whatever the ranges are by
//     then, so records are numbered and sent in the order in which they come. The server
//     takes such batches apart record by record, which costs more. A [Batch] goes as it was
//     filled; one whose keys all belong to one range is stored as it is.
//   - A consumer goes on where it was, and hands out only records whose frames verify.
//   - Every call ends when its context ends, or after [Options].RequestTimeout if that is
//     earlier. Its error says whether the outcome is known: see [Unknown].
//   - A server that disappears without a word is noticed within two heartbeats.
//   - Memory is bounded: all batches share [Options].MemoryBytes, a consumer holds two pages,
//     and memory for what a server sends is taken as it arrives, not as it is announced.
//     Descriptors are bounded, too: a consumer holds one for a page that it has not looked at
//     yet, and none after Close. No file is mapped (files.go).
//   - Whatever a server sends, it cannot make the client panic.
//
// # Goroutines and locks
//
// A connection has a reader and a writer; one with shared memory has a third goroutine that
// takes answers from there. They hand answers over and wait for nobody. Callbacks run on a
// goroutine of their producer. Small requests are written by their callers, if the writer is
// idle and the socket takes them. Lock order: Producer.mu, then link.mu, then conn.mu, then
// memory.mu. None is held across I/O or a callback.
//
// retry.go says which failures are tried again, by whom and how often.
package client

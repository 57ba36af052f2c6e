// Package client reaches a Ringfence server over TCP, TLS, a Unix socket or shared memory,
// with the nouns and the promises of package engine: a program changes from one to the other in
// the line that opens it.
//
// # Nouns
//
// A [Client] is a server's address with two connections, from [Dial] to Close: one for
// producers, one for everything else, so that a page on its way never delays an
// acknowledgement. From [DialShm] on the first of them shares memory with the server, and
// batches are built there; over the other one come descriptors of closed segments' files,
// which consumers read themselves. A [Producer] sends records to one topic: one at a time and waiting,
// one at a time with a callback, or many in a [Batch]. A [Consumer] reads one topic.
//
// # Promises
//
//   - A nil error from Produce, or in a callback, means that the server has the record on
//     stable storage.
//   - A connection that is lost is made again, with growing pauses. A producer then sends
//     again, in order, what was not answered, and the server recognises what it had: a
//     record is stored once and records of one key keep their order. One that is
//     NotIdempotent reports what was on its way as unknown instead.
//   - Records gather by range, and whoever sends follows splits and merges; the server takes
//     apart what does not go by them.
//   - A producer with an ID of its own sends frames of several ranges, which the server takes
//     apart record by record, at more cost. What gathers by range gets its numbers when its
//     batch is closed, and so by what the ranges were; a later run with the ID must give each
//     record the number again that it had, whatever the ranges are by then. So its records are
//     numbered, and sent, in the order in which they come. A [Batch] goes as it was filled: one
//     with the keys of one range alone is stored as it is.
//   - A consumer goes on where it was, and hands out only frames that verify.
//   - Every call ends with its context, or within [Options].RequestTimeout where that is
//     less. Its error says whether the outcome is known: see [Unknown].
//   - A server that is gone without a word is noticed within two heartbeats.
//   - Memory is bounded: batches share [Options].MemoryBytes, a consumer holds two pages,
//     and what a server sends is given room as it comes, not as it is announced. So are
//     descriptors: a consumer has one of a page that came and was not looked at, and none
//     behind Close. No file is mapped (files.go).
//   - Whatever a server sends, it cannot make the client panic.
//
// # Goroutines and locks
//
// A connection has a reader and a writer, and one with shared memory a third who takes
// answers from there. They hand answers over and wait for nobody; callbacks run on a
// goroutine of their producer. Small requests are written by those who make them, where
// the writer is idle and the socket takes them. Lock order: Producer.mu, then link.mu, then
// conn.mu, then memory.mu. None is held across I/O or a callback.
//
// retry.go says which failures are tried again, by whom and how often.
package client

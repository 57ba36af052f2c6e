// Package engine is Ringfence inside a process: topics of key/value records in
// append-only segment files, written through io_uring, each acknowledged once it is
// durable.
//
// # Nouns
//
// An [Engine] is a store in one directory, from [Open] to Close. A [Producer]
// sends records to one topic: one at a time and waiting ([Producer.Produce]), one at
// a time with a callback ([Producer.Append]), or many in memory that goes to the
// device as it is ([Batch]). A [Consumer] reads one topic from the start, the end, a
// cursor, a time or where its group is; its cursor and its group's position survive
// rolls, splits, merges, retention and restarts.
//
// A topic's keys are hashed onto 2^32 positions, which its ranges share out. A
// range is written to one segment file after another. [Engine.SplitRange] and
// [Engine.MergeRanges] change the ranges under load; producers and consumers
// follow by themselves, and records with equal keys keep their order.
//
// # Promises
//
//   - A nil error from Produce, or in a callback, means that the record is on stable
//     storage, with everything before it in its segment. After ErrStorage the record
//     may be stored or not; nothing is retried behind the caller's back.
//   - Records with equal keys are read in the order in which one producer sent them,
//     across rolls, splits and merges.
//   - A record is stored once, however often its producer sends it under the same
//     [ProducerOptions].ID and in the same order: repeats are recognised. Such a
//     producer stops at the first record that fails.
//   - A consumer never sees a record that is not durable, and hears of every offset it
//     moves past.
//   - Damage is an error that names file and byte, never a short log. What is damaged
//     or missing in one topic does not touch the others.
//   - Log and metadata lie in two directories, log/ and meta/. Neither is taken for
//     empty when the other is there: a directory of which a part is gone, or of another
//     time, is refused with what to do.
//   - On a full disk, and below [Options].ReserveBytes of free space, records are refused
//     with ErrOutOfSpace. Reads, deletes and retention go on, also after a start on it,
//     and with space everything goes on by itself.
//   - Memory is bounded by [Options].ArenaBytes; what does not fit waits, or fails with
//     the caller's context.
//
// # The path of a record
//
// Produce puts the record on the open batch of its key's lane (producer.go). The
// batch leaves when nothing else of the lane is on its way (lane.go), to the write
// head that the frontend planned (package engine/frontend), through the store's
// shard to the disk (package engine/store), and comes back through landed, which
// answers the callers and lets the next batch go. When the head is fenced, one
// goroutine finds the next (reroute.go, head.go). A Consumer reads it back with a
// store.Scanner (consumer.go).
//
// # Goroutines and locks
//
// An Engine runs one goroutine that fences what is owed, one for retention, the
// store's resident reapers and those that look after its space, its quiet segments, its
// files and late writes, and the metadata's. A Producer has none of its own but one
// for each range whose write head is being looked for. Lock order: a held range
// (Engine.hold), then Producer.mu, then the frontend's and the shard's own locks. No
// lock is held across I/O, a metadata command or a callback, but for a held range.
package engine

// Package engine is Ringfence inside a process: topics of key/value records in
// append-only segment files, written through io_uring. Every record is acknowledged
// once it is durable.
//
// # Nouns
//
// An [Engine] is a store in one directory, from [Open] to Close. A [Producer] sends
// records to one topic: one at a time, waiting for each ([Producer.Produce]); one at a
// time with a callback ([Producer.Append]); or many at once, in memory that goes to the
// device as it is ([Batch]). A [Consumer] reads one topic, from the start, the end, a
// cursor, a time, or wherever its group is. Its cursor and its group's position survive
// rolls, splits, merges, retention and restarts.
//
// A topic's keys are hashed onto 2^32 positions, which its ranges divide among
// themselves. A range is written to one segment file after another; a roll closes one
// and opens the next. [Engine.SplitRange] and [Engine.MergeRanges] change the ranges
// under load: producers and consumers follow by themselves, and records with equal keys
// keep their order.
//
// # Promises
//
//   - A nil error from Produce, or in a callback, means that the record is on stable
//     storage, together with everything before it in its segment. After ErrStorage the
//     record may or may not be stored; nothing is retried behind the caller's back.
//   - Records with equal keys are read in the order in which one producer sent them,
//     across rolls, splits and merges.
//   - A record is stored once, however often it is sent under the same
//     [ProducerOptions].ID and in the same order: repeats are recognised. A producer
//     with such an ID stops at the first record that fails.
//   - A consumer never sees a record that is not durable, and is told of every offset
//     it skips.
//   - Damage is an error that names file and byte, never a short log. What is damaged
//     or missing in one topic does not affect the others.
//   - Log and metadata live in two directories, log/ and meta/. Neither is taken for
//     empty while the other is there: if a part is missing, or the two are from
//     different times, Open refuses and says what to do.
//   - When the disk is full, or has less than [Options].ReserveBytes free, records are
//     refused with ErrOutOfSpace. Reads, deletes and retention go on, and so does Open.
//     Once there is space, everything resumes by itself.
//   - [Options].ArenaBytes bounds the memory of batches and reads. What does not fit
//     waits, or fails when the caller's context ends.
//
// # The path of a record
//
// Produce adds the record to the open batch of its key's lane (producer.go). The batch
// leaves when nothing else of the lane is in flight (lane.go). It goes to the write head
// that the frontend planned for it (package engine/frontend), through the store's shard
// to the disk (package engine/store), and comes back in Producer.landed, which answers
// the callers and sends the next batch. When the write head is fenced, one goroutine finds
// the next one (findhead.go, head.go, roll.go); after a split or merge it routes what waits
// anew (reroute.go). A Consumer reads the record back with a store.Scanner (consumer.go).
//
// # Goroutines and locks
//
// An Engine runs one goroutine for the fences that are owed and one for retention. The
// store and the metadata run their own. A Producer has none, except one for each range
// whose write head is being looked for.
//
// Lock order: a held range (Engine.hold), then Producer.mu, then the locks of the
// frontend and of a shard. Except for a held range, no lock is held across I/O, a
// metadata command or a callback.
package engine

// Package fence says who may append to a segment, and when that ends for good.
//
// Its nouns are the identities ([TopicID], [RangeID], [SegmentID]), the [End] of
// a copy, the [Latch] that closes one copy, and the [Ledger] of rolls that a
// frontend owes. A Latch belongs to the store that owns the copy: it moves from
// open to fenced and then, at most once, to settled, and never back. A Ledger
// belongs to one frontend (or one shard of it), under that owner's lock.
//
// Everything here is a plain value: no clock, no randomness, no files and no
// goroutines. Time comes in as an argument. The promise is the order of a roll:
// a segment is fenced first, then sealed in the control plane at the end the
// fence answered, and only then does a successor open at exactly that end.
package fence

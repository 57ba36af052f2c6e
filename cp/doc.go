// Package cp is the metadata of Ringfence as a pure state machine.
//
// A [State] holds the [Topic], [Range], [Segment], group, [Policy] and [User]
// records of one vnode. Everything that changes them is a [Command]; [State.Apply] answers
// each with a [Reply]. Apply reads no clock, draws no randomness and never
// panics: the same commands give the same state and the same replies on every
// replica, and a refused command leaves the state as it was. Times and random
// bits come in inside the commands.
//
// A State is not safe for concurrent use: apply and query it under one lock, or
// give each reader its own [State.Clone], which is cheap because it shares what
// neither side changes. Records that queries return are never modified later and
// may be kept; slices belong to the state and are read before its next Apply.
//
// A range that was split or merged stays in its topic for good, even when retention has
// emptied it: a cursor may name it for ever, and what is kept of it says how much is gone
// and where to go on. It keeps only its direct parents; [State.IsAncestor] finds out the
// rest. So a change costs the same after any number of changes, and a snapshot or an export
// costs what the ranges and segments in it cost. A topic has at most [MaxRanges], which is
// 87,381 splits with as many merges.
//
// A [Ring] says which vnode a topic lives on. [Place] chooses replicas,
// [Expired] and [DueForRoll] decide retention; all are functions of their
// arguments alone.
//
// [Encode] and [Reply.Encode] are what enters and leaves a replicated log,
// [State.Snapshot] what replaces it. These three formats are versioned, and equal
// values have equal bytes.
package cp

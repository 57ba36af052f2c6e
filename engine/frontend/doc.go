// Package frontend routes records to segments and closes segments in the right
// order. It is the state of one entry point: the linked engine, one shared-memory
// client, one TCP session host.
//
// A [Frontend] holds a cached view of the metadata ([View]: one cp.State for each
// vnode) and, for every range it has touched, the write head, the offsets it
// reserved and the rolls it owes. Any frontend may serve any topic, and several
// may serve one at the same time: the primary of a segment alone assigns offsets,
// the control plane alone says which segment is a range's head, and a frontend
// only predicts and adopts.
//
// # Producing
//
// [Frontend.PlanBatch] turns the smallest and largest key position of a batch into
// a [Dispatch]: range, segment, primary and the offsets reserved for it. That is
// the fast path: two comparisons under one short lock, no allocation. A [Topic]
// from [Frontend.Topic] saves the look-up of the name, and [Topic.Version] says
// when the ranges of the topic have changed. A batch that belongs to more than one
// range is refused with [ErrStraddles] and must be split, or planned by records with
// [Frontend.PlanProduce]. Whoever sends a dispatch reports every successful answer
// with [Frontend.AdoptOffsets] and every refusal by a fenced copy with
// [Frontend.ForgetSealed], then plans the batch again.
//
// A frontend that only routes, such as a client's, has no view: [Frontend.Learn] tells it
// the ranges of a topic, and [Topic.Slices] what they are now.
//
// # Rolling
//
// A head that has grown past Options.SegmentMaxBytes, or that
// [Frontend.RequestRolls] names, is owed a roll; the range stays writable.
// [Frontend.FencesToSend] says which fences to send now, [Frontend.RecordFence]
// takes the answer and records the seal, [Frontend.ForgetFence] gives a failed one
// back. The next produce opens the successor at exactly the sealed end. The order
// is always fence, seal recorded, successor; split and merge follow a seal too.
//
// # Consuming
//
// [Frontend.Plan] says which ranges a consumer can read now, from which offset and
// for which slice of the keys, so that parents are finished before their children
// and every key keeps its order; [Frontend.Locate] says which segment serves an
// offset. [Frontend.ReadConsume], [Frontend.StreamHistory] and [Frontend.Read] do
// all of it over an injected [ReadFunc]. Nothing past the commit mark is returned.
// Positions are maps ([Offsets]), kept for groups in the control plane.
//
// The linked engine plans batches and rolls here, but reads its segments directly (see
// Consumer in package engine): these functions are for frontends whose segments lie on
// other nodes, of which this version has none.
//
// # Rules
//
// The package is pure: it has no clock, randomness, files, goroutines or logging.
// [Instant] is monotonic and in nanoseconds, times of records and segments are
// milliseconds since the epoch, sizes are bytes; all come in as arguments, and
// random bits through Options.Bits.
//
// A Frontend may be used by any number of goroutines. Two kinds of lock guard it,
// taken in this order and never the other way round: meta, over the cached view;
// then the lock of one topic shard, over what is hot. Options.Command and the
// functions given to Produce and to the reads may block and are called without
// either; what was decided before is checked again after. Waiters for a head that
// another caller is opening wait on a channel, outside both locks.
//
// On an error the state is as it was before the call, unless the function says
// otherwise. What the control plane committed stays true and stays in the view
// even when a later step of the same call failed: a retry finds it there.
package frontend

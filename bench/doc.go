// Package bench measures the engine next to a floor: what the same device gives for the
// same bytes, in the same minute, without an engine.
//
// A [Shape] is a pattern of I/O and a [Floor] is what fio, or a plain Go loop
// where fio is missing, got for it. A [Load] sends batches to a [Target] and
// returns a [Result]; [Engine] runs one as a target of this package. A [Row] of the
// [Suite] is a workload, its floor, and the ratio between the two that is wanted; a row
// runs several times and reports medians.
//
// Rates and latencies are comparable only within one run on one machine, so
// everything here is reported as a ratio first and as a number second. Results
// count payload bytes (keys and values), state the durability and the errors,
// and a result with errors has no rate. Only commands and tests import bench.
package bench

// Package recfb is the code that flatc generates from batch.fbs, the schema of a
// batch of records inside a frame.
//
// It is committed so that a build needs no flatc, and it is what a reader written
// in another language would have. Ringfence itself builds and reads batches with
// package record, whose tests hold it to this code. Generated accessors follow
// offsets without checking them: only bytes that passed record.Verify may be
// given to them.
package recfb

//go:generate flatc --go -o .. batch.fbs

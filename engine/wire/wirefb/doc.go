// Package wirefb is the code that flatc generates from wire.fbs, the schema of the
// messages of the wire protocol.
//
// It is committed so that a build needs no flatc. Package wire is what programs use;
// it gives the messages under its own name. Generated accessors follow offsets
// without checking them: only bytes that passed wire.Verify may be given to them.
package wirefb

//go:generate flatc --go --gen-object-api -o .. wire.fbs
//go:generate gofmt -w .

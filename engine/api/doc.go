// Package api holds the types that a program uses whether it links the engine or reaches
// one over the network: records and where they are stored, options, descriptions of topics,
// errors, and the text of cursors. Package engine has the types and the errors under its own
// names, package engine/client the errors. A program that changes from one to the other
// changes only the line that opens the log.
package api

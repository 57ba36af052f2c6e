// Package api holds the nouns that a program meets whether it links the engine or
// reaches one over the network: records and where they are stored, options, what is
// told of topics, errors, and the text of cursors. Packages engine and engine/client
// give these under their own names, so that a program changes between them in the
// line that opens one.
package api

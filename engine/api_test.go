package engine

import "github.com/ringfence/ringfence/engine/api"

// A program may be written against the interfaces of package api.
var (
	_ api.Admin    = (*Engine)(nil)
	_ api.Producer = (*Producer)(nil)
	_ api.Consumer = (*Consumer)(nil)
)

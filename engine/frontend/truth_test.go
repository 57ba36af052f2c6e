package frontend

import (
	"github.com/ringfence/ringfence/cp"
)

// truth is a control plane of its own, for frontends whose view may differ from it.
type truth struct {
	t    tb
	view View
	log  []cp.Command // what was accepted
}

func newTruth(t tb, vnodes int) *truth {
	t.Helper()
	v, err := NewView(vnodes)
	if err != nil {
		t.Fatal(err)
	}
	return &truth{t: t, view: v}
}

func (c *truth) apply(cmd cp.Command) cp.Reply {
	state, _ := c.view.target(cmd)
	if state == nil {
		return cp.Reply{Err: unknownTarget(cmd)}
	}
	reply := state.Apply(cmd)
	if reply.Err == nil {
		c.log = append(c.log, cmd)
	}
	return reply
}

func (c *truth) command(_ string, cmd cp.Command) cp.Reply { return c.apply(cmd) }

func (c *truth) fetch(topic string) (*cp.State, error) { return c.view.of(topic).Clone(), nil }

// snapshot is what a refresh reads.
func (c *truth) snapshot() View { return c.view.clone() }

// front is a frontend of that control plane. With fetch it brings topics up to date by itself.
func (c *truth) front(fetch bool, change ...func(*Options)) *Frontend {
	c.t.Helper()
	return newFrontend(c.t, append([]func(*Options){func(o *Options) {
		o.View = c.snapshot()
		o.Command = c.command
		if fetch {
			o.Fetch = c.fetch
		}
	}}, change...)...)
}

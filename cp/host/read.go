package host

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/lni/dragonboat/v4"
	"github.com/ringfence/ringfence/cp"
)

// Read calls look with a vnode's state as it is after every command that was
// answered before Read was called. look runs alone, may not change the state and
// may not keep it; it keeps a [cp.State.Clone], or records, which never change.
//
// The barrier and the look belong to one request on one replica, so a restart
// between them makes the call fail, never answer something old.
func (h *Host) Read(ctx context.Context, id cp.VnodeID, look func(*cp.State)) error {
	v, err := h.vnode(id)
	if err != nil {
		return err
	}
	ctx, cancel := h.bound(ctx)
	defer cancel()
	if err := h.read(ctx, v, look); err != nil {
		return fmt.Errorf("vnode %d: %w", id, err)
	}
	return nil
}

func (h *Host) read(ctx context.Context, v *vnode, look func(*cp.State)) error {
	if err := h.Err(); err != nil {
		return err
	}
	var rs *dragonboat.RequestState
	err := h.guard(func() (err error) {
		rs, err = h.nh.ReadIndex(v.shard, remaining(ctx))
		return err
	})
	if err != nil {
		return notProposed(err)
	}
	select {
	case res := <-rs.ResultC():
		switch {
		case res.Completed():
			err := h.guard(func() error {
				_, err := h.nh.ReadLocalNode(rs, query(look))
				return err
			})
			rs.Release()
			return notProposed(err)
		case res.Terminated():
			return ErrClosed
		}
		return ErrNotReady
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-h.failed:
		return h.cause
	}
}

// ReadLocal calls look with what this replica has applied, without asking the log:
// it works while the vnode has no leader, after a failure and when the disk is
// full. On a node without peers it lags only behind commands that were not
// answered yet.
func (h *Host) ReadLocal(id cp.VnodeID, look func(*cp.State)) error {
	v, err := h.vnode(id)
	if err != nil {
		return err
	}
	return v.machine.read(look)
}

// View is one vnode's state at one moment, the caller's own.
type View struct {
	Vnode cp.VnodeID
	State *cp.State
}

// Views copies every vnode's state, each as Read would see it, all at once. Vnodes
// that could not be read are in unreachable, with why in err, and not in views:
// a caller keeps what it knew of them, because unknown is never empty.
func (h *Host) Views(ctx context.Context) (views []View, unreachable []cp.VnodeID, err error) {
	ctx, cancel := h.bound(ctx)
	defer cancel()
	states := make([]*cp.State, len(h.vnodes))
	errs := make([]error, len(h.vnodes))
	var wg sync.WaitGroup
	for i, v := range h.vnodes {
		wg.Go(func() {
			errs[i] = h.Read(ctx, v.id, func(s *cp.State) { states[i] = s.Clone() })
		})
	}
	wg.Wait()
	for i, v := range h.vnodes {
		if errs[i] != nil {
			unreachable = append(unreachable, v.id)
		} else {
			views = append(views, View{v.id, states[i]})
		}
	}
	return views, unreachable, errors.Join(errs...)
}

func (h *Host) vnode(id cp.VnodeID) (*vnode, error) {
	if id == 0 || uint64(id) > uint64(len(h.vnodes)) {
		return nil, fmt.Errorf("%w: %d of %d", cp.ErrNoSuchVnode, id, len(h.vnodes))
	}
	return h.vnodes[id-1], nil
}

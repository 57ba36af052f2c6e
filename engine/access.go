package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/ringfence/ringfence/cp"
)

// access is a local copy of what the metadata knows of users, to ask about every
// request. It is read anew by the first who asks after a change, so that nothing which
// was answered before is overlooked.
type access struct {
	changes atomic.Uint64 // counted before they are answered

	change sync.RWMutex // held while a change is checked and made, alone where another could undo the check

	mu     sync.Mutex                    // held while the copy is made; guards guards
	guards []weak.Pointer[Authenticator] // of this engine's servers, which keep them
	now    atomic.Pointer[accessView]
}

// accessView is the copy as it was when there had been so many changes, at least.
type accessView struct {
	*cp.Access
	changes uint64
}

// outdate is called by the metadata, under the lock of its state.
func (a *access) outdate() { a.changes.Add(1) }

// guardedBy notes another authenticator of the engine, for as long as anybody has it: a
// program may make a server after the other.
func (a *access) guardedBy(auth *Authenticator) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.guards = slices.DeleteFunc(a.guards, func(g weak.Pointer[Authenticator]) bool { return g.Value() == nil })
	a.guards = append(a.guards, weak.Make(auth))
}

func (a *access) guardians() (all []*Authenticator) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.guards {
		if auth := g.Value(); auth != nil {
			all = append(all, auth)
		}
	}
	return all
}

// accessNow is what is known of users. An error is not to be taken for nobody.
func (e *Engine) accessNow() (*cp.Access, error) {
	a := &e.access
	if v := a.now.Load(); v != nil && v.changes == a.changes.Load() {
		return v.Access, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	fresh := &accessView{changes: a.changes.Load()} // before the copy: a change meanwhile is looked at again
	if v := a.now.Load(); v != nil && v.changes == fresh.changes {
		return v.Access, nil
	}
	if err := e.host.ReadLocal(e.home(), func(s *cp.State) { fresh.Access = s.Access() }); err != nil {
		return nil, fromHost(err)
	}
	a.now.Store(fresh)
	return fresh.Access, nil
}

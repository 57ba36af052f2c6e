package frontend

import (
	"maps"
	"slices"

	"github.com/ringfence/ringfence/cp"
)

// PutCache replaces the view by one that was read from the control plane, and takes it
// over. A vnode that could not be read keeps what the old view had of it; a vnode that
// answered is believed, also when it is empty. Offsets, heads and rolls are not touched:
// call [Frontend.DropStaleActiveSegments] after. [Frontend.Refresh] does the whole of it
// in one step.
func (f *Frontend) PutCache(v View, unreachable []cp.VnodeID) {
	f.meta.Lock()
	defer f.meta.Unlock()
	f.putCache(v, unreachable)
}

func (f *Frontend) putCache(v View, unreachable []cp.VnodeID) {
	next := View{Ring: v.Ring, Vnodes: maps.Clone(v.Vnodes)}
	if next.Vnodes == nil {
		next.Vnodes = map[cp.VnodeID]*cp.State{}
	}
	for _, id := range unreachable {
		if old := f.view.Vnodes[id]; old != nil {
			next.Vnodes[id] = old
		}
	}
	f.view = next
	f.resyncAll()
}

// StartJournal makes the frontend note the commands it applies to its view, for one whose
// view is re-seeded from reads that may be older than its own writes.
func (f *Frontend) StartJournal() {
	f.meta.Lock()
	defer f.meta.Unlock()
	f.journey = true
}

// TakeJournal returns what was noted since the last call, oldest first, and empties it.
// Refused commands and those without an answer were never noted. Topics that were fetched in
// that time come first, as inserts: over a view that is newer they do nothing.
func (f *Frontend) TakeJournal() []cp.Command {
	f.meta.Lock()
	defer f.meta.Unlock()
	return f.takeJournal()
}

func (f *Frontend) takeJournal() []cp.Command {
	var taken []cp.Command
	for _, topic := range slices.Sorted(maps.Keys(f.fetched)) {
		taken = append(taken, cp.InsertTopic{Export: f.fetched[topic]})
	}
	taken = append(taken, f.journal...)
	f.journal, f.fetched = nil, nil
	return taken
}

// ReplayJournal applies noted commands to the view again, and to nothing else. What the
// view refuses it has already, or cannot have. A group never moves back: even a commit that
// reset one only raises here, because another may have committed more since.
func (f *Frontend) ReplayJournal(commands []cp.Command) {
	f.meta.Lock()
	defer f.meta.Unlock()
	f.replayJournal(commands)
}

func (f *Frontend) replayJournal(commands []cp.Command) {
	for _, cmd := range commands {
		if c, ok := cmd.(cp.CommitOffset); ok {
			c.Reset = false
			cmd = c
		}
		f.mirror(cmd)
	}
}

// Refresh installs a view read from the control plane in one step: journal taken, view
// replaced, journal replayed, stale heads and rolls dropped. Nothing that this frontend
// commits meanwhile is lost from its view.
func (f *Frontend) Refresh(v View, unreachable []cp.VnodeID) {
	f.meta.Lock()
	defer f.meta.Unlock()
	journal := f.takeJournal()
	f.putCache(v, unreachable)
	f.replayJournal(journal)
	f.dropStale()
}

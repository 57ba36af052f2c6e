package store

import "github.com/ringfence/ringfence/segfile/disk"

// A shard drives the appends of the segments that live on it.
type shard struct {
	driver
	store *Store

	// guarded by mu
	submitting bool       // somebody is in pump
	delivering bool       // somebody is in deliver
	inFlight   int        // flushes handed to the queue and not settled
	ready      []*Segment // have something to start; each at most once
	mending    []*flush   // whose changed frames are being mended: the next write is due
	asides     []*flush   // to be written although their segment has nothing else to write
	written    []*Segment // to be proved once they are quiet; each at most once
	acks       []*Append  // to be answered, in order
	moved      []*Segment // their commit mark moved since the last delivery
	spare      []*flush   // flushes to reuse
	owed       int64      // how much files will grow for appends that are not answered
	grown      int64      // how much they have grown since the last look at the free space

	starting []*flush   // owned by the submitter
	finished []*flush   // owned by the reaper: what Done left for settle
	touched  []*Segment // likewise
	acking   []*Append  // owned by the deliverer
	telling  []*Segment
}

func newShard(s *Store, q disk.Queue) *shard {
	sh := &shard{store: s}
	sh.start(q, sh.settleFlushes)
	return sh
}

// stop answers what was queued and closes the queue.
func (sh *shard) stop() error {
	if !sh.halt(func() bool { return sh.submitting || sh.delivering || sh.inFlight > 0 || len(sh.ready) > 0 }) {
		return nil
	}
	<-sh.gone
	return sh.q.Close()
}

// markReady notes that s may have something to start. mu is held.
func (sh *shard) markReady(s *Segment) {
	if !s.ready {
		s.ready = true
		sh.ready = append(sh.ready, s)
	}
}

// pump starts every flush that may start now, and answers what is due. mu is held, and
// released around copies and system calls. If somebody else is in pump, that one looks
// again before it leaves. lead says that the caller will reap.
func (sh *shard) pump(lead bool) {
	sh.launch(lead)
	for sh.deliver() {
		sh.launch(lead) // what those who were answered have sent
	}
}

// launch is pump without the answers.
func (sh *shard) launch(lead bool) {
	if sh.submitting {
		return
	}
	sh.submitting = true
	started := false
	for sh.choose() {
		sh.mu.Unlock()
		pushed := 0
		for _, f := range sh.starting {
			if f.prepare() {
				f.began = sh.store.opts.Now()
				if err := sh.q.Push(&f.op); err != nil {
					// The disk is closed; depth was checked. Only a flush that Push took is the queue's.
					f.op.Err, f.idle = err, true
					continue
				}
				pushed++
			}
		}
		if pushed > 0 {
			_ = sh.q.Submit() // a refusal completes the operations with the error
			started = true
		}
		sh.mu.Lock()
		for _, f := range sh.starting {
			if f.idle {
				f.settle()
				sh.advance(f.seg)
			}
		}
	}
	sh.submitting = false
	sh.idle.Broadcast()
	if started && !lead && !sh.reaping {
		sh.wakeResident()
	}
}

// choose moves what may start from the ready segments to starting. mu is held.
func (sh *shard) choose() bool {
	sh.starting = append(sh.starting[:0], sh.mending...)
	sh.mending = sh.mending[:0]
	sh.starting = append(sh.starting, sh.asides...)
	sh.asides = sh.asides[:0]
	later := sh.ready[:0]
	for _, s := range sh.ready {
		for s.mayStart() && sh.inFlight < sh.q.Depth() {
			f := s.take(sh)
			sh.inFlight++
			sh.starting = append(sh.starting, f)
			if sh.inFlight < sh.q.Depth() && s.wantsAside() {
				sh.inFlight++
				sh.starting = append(sh.starting, s.takeAside(sh))
			}
		}
		if s.mayStart() {
			later = append(later, s) // the queue is full; settleFlushes pumps again
		} else {
			s.ready = false // its next completion marks it again
		}
	}
	clear(sh.ready[len(later):])
	sh.ready = later
	return len(sh.starting) > 0
}

// settleFlushes runs on the reaper after each wait: it moves the commit marks,
// starts what may start now and answers what became durable.
func (sh *shard) settleFlushes() {
	for _, f := range sh.finished {
		f.keep() // without mu, which those who append wait for
	}
	sh.mu.Lock()
	for _, f := range sh.finished {
		f.settle()
		if n := len(sh.touched); n == 0 || sh.touched[n-1] != f.seg {
			sh.touched = append(sh.touched, f.seg)
		}
	}
	clear(sh.finished)
	sh.finished = sh.finished[:0]
	for _, s := range sh.touched { // a flush may be recycled with one before it
		sh.advance(s)
	}
	clear(sh.touched)
	sh.touched = sh.touched[:0]
	sh.pump(true)
	sh.mu.Unlock()
}

// settle notes that f's outcome is known. After a failed one nothing more is written to its
// copy, though flushes before it may still succeed. mu is held.
func (f *flush) settle() {
	if f.mending != nil && !f.mended() {
		return
	}
	f.settled = true
	if f.quiet && f.stage == nil { // there was no memory for it
		f.seg.proved = 0
	}
	if !f.aside {
		f.seg.unsettled--
	}
	f.seg.spoilt = f.seg.spoilt || f.changed
	if f.op.Err == nil && !f.idle {
		f.seg.store.count.latency.Note(f.seg.store.opts.Now().Sub(f.began))
	}
	if s := f.seg; f.op.Err != nil && s.failed == nil {
		s.failed = storageError(f.op.Err)
		s.store.count.failures.Add(1)
		s.store.noteSpace(s.failed)
	}
}

// advance moves s's commit mark over the flushes that are done without a gap and
// queues the answers. mu is held.
func (sh *shard) advance(s *Segment) {
	for s.flushes.len() > 0 && s.flushes.peek().settled {
		if f := s.flushes.peek(); f.changed && s.failed == nil {
			sh.startMending(s)
			break
		}
		f := s.flushes.pop()
		s.unconfirmed -= f.given
		s.aside = s.aside && !f.aside
		sh.inFlight--
		s.broken = s.broken || f.op.Err != nil || f.changed
		for _, a := range f.appends {
			if a.trimmed != nil {
				sh.store.disk.Arena().Free(a.trimmed)
				a.trimmed = nil
			}
			switch {
			case f.changed && a.Err == nil:
				a.Err = s.wrap(ErrChanged)
			case s.broken && a.Err == nil:
				a.Err = s.wrap(s.failed)
			}
			sh.due(a)
		}
		if !s.broken {
			s.commitTo(f)
			sh.moved = append(sh.moved, s)
		}
		sh.recycle(f)
	}
	if s.failed != nil && s.flushes.len() == 0 {
		sh.giveUp(s)
	}
	if s.queue.len() == 0 && s.flushes.len() == 0 {
		s.claimed = s.end.Position
		if !s.listed && s.proved != s.claimed {
			s.listed = true
			sh.written = append(sh.written, s)
		}
	}
	if s.queue.len() > 0 {
		sh.markReady(s)
	}
	if s.phase == fencing && s.queue.len() == 0 && s.flushes.len() == 0 && !s.drained.done.Load() {
		s.drained.release()
	}
}

// deliver answers what is due, in order, until nothing is left, and reports whether there was
// anything. One goroutine at a time does this. mu is held, and released around the answers.
func (sh *shard) deliver() (any bool) {
	if sh.delivering {
		return false
	}
	sh.delivering = true
	for len(sh.acks) > 0 || len(sh.moved) > 0 {
		any = true
		sh.acking, sh.acks = sh.acks, sh.acking[:0]
		sh.telling, sh.moved = sh.moved, sh.telling[:0]
		sh.mu.Unlock()
		for _, s := range sh.telling {
			s.tell() // first, so that readers wake up while answers are written to sockets
		}
		for _, a := range sh.acking {
			a.answer()
		}
		clear(sh.acking)
		clear(sh.telling)
		sh.mu.Lock()
	}
	sh.delivering = false
	sh.idle.Broadcast()
	return any
}

// giveUp answers everything queued on a copy that failed, after what was in flight. Nothing
// is tried again. mu is held.
func (sh *shard) giveUp(s *Segment) {
	for s.queue.len() > 0 {
		a := s.dequeue()
		a.Err = s.wrap(s.failed)
		sh.due(a)
	}
}

// due queues the answer to a. mu is held.
func (sh *shard) due(a *Append) {
	sh.owed -= a.grows
	sh.acks = append(sh.acks, a)
}

// spareFlush returns a flush to fill. mu is held.
func (sh *shard) spareFlush() *flush {
	if n := len(sh.spare); n > 0 {
		f := sh.spare[n-1]
		sh.spare = sh.spare[:n-1]
		return f
	}
	f := &flush{}
	f.op.Done = func(*disk.Op) {
		if f.lent != nil {
			f.examine()
		}
		sh.finished = append(sh.finished, f)
	}
	return f
}

func (sh *shard) recycle(f *flush) {
	if f.stage != nil {
		sh.store.disk.Arena().Free(f.stage)
	}
	clear(f.appends)
	clear(f.heads)
	clear(f.pieces)
	*f = flush{op: disk.Op{Done: f.op.Done}, appends: f.appends[:0], heads: f.heads[:0], pieces: f.pieces[:0]}
	sh.spare = append(sh.spare, f)
}

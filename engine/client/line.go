package client

// line is a producer's batches that are closed and not yet told of, in order. The
// producer's mu guards it.
type line struct {
	first, last *batch
	n           int
	unsent      *batch // none before it waits to be handed to a connection; nil: none does
}

func (l *line) add(b *batch) {
	b.before = l.last
	if l.last == nil {
		l.first = b
	} else {
		l.last.behind = b
	}
	l.last = b
	l.n++
	l.again(b)
}

// again notes that b waits to be handed to a connection.
func (l *line) again(b *batch) {
	if l.unsent == nil || b.number < l.unsent.number {
		l.unsent = b
	}
}

func (l *line) remove(b *batch) {
	if l.unsent == b {
		l.unsent = b.behind
	}
	if b.before == nil {
		l.first = b.behind
	} else {
		b.before.behind = b.behind
	}
	if b.behind == nil {
		l.last = b.before
	} else {
		b.behind.before = b.before
	}
	b.before, b.behind = nil, nil
	l.n--
}

// all is each of them, of which the one that is looked at may be removed.
func (l *line) all(yield func(*batch) bool) {
	for b := l.first; b != nil; {
		next := b.behind
		if !yield(b) {
			return
		}
		b = next
	}
}

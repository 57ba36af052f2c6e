package engine

func (w *world) sender() *sender {
	if len(w.senders) < 3 {
		s := &sender{id: uint64(100 + len(w.senders))}
		w.senders = append(w.senders, s)
		w.restart(s)
		return s
	}
	return w.senders[w.rng.IntN(len(w.senders))]
}

// restart gives a sender a new producer under its id and sends all again.
func (w *world) restart(s *sender) {
	w.t.Helper()
	if s.p != nil {
		w.must(s.p.Close(within(w.t)))
	}
	p, err := w.e.NewProducer(ProducerOptions{
		Topic: modelTopic, ID: s.id, BatchBytes: 32<<10 + w.rng.IntN(64<<10), Codec: Codec(w.rng.IntN(3)),
	})
	w.must(err)
	s.p = p
	w.did("sender %d restarts and sends %d again", s.id, len(s.sent))
	for i := 0; i < len(s.sent); {
		n := min(1+w.rng.IntN(20), len(s.sent)-i)
		for _, pl := range w.send(s, s.sent[i:i+n]) {
			if !pl.Duplicate {
				w.fail("sender %d: a record sent again was stored again, at %+v", s.id, pl)
			}
		}
		i += n
	}
}

// send sends records in one of the ways there are and returns where they are.
func (w *world) send(s *sender, list []Record) []Placement {
	w.t.Helper()
	ctx := within(w.t)
	places := make([]Placement, len(list))
	switch w.rng.IntN(3) {
	case 0:
		for i, r := range list {
			pl, err := s.p.Produce(ctx, r)
			w.must(err)
			places[i] = pl
		}
		return places
	case 1:
		for i, r := range list {
			w.must(s.p.Append(ctx, r, func(pl Placement, err error) {
				if err != nil {
					w.t.Error(err)
				}
				places[i] = pl
			}))
		}
		w.must(s.p.Flush(ctx))
		return places
	}
	for i, r := range list { // one batch each, or its placement says too little
		b, err := s.p.NewBatch(ctx, 64<<10)
		w.must(err)
		w.must(b.Add(r))
		w.must(b.Send(ctx, func(pl Placement, err error) {
			if err != nil {
				w.t.Error(err)
			}
			places[i] = pl
		}))
	}
	w.must(s.p.Flush(ctx))
	return places
}

func (w *world) produce() {
	s := w.sender()
	list := make([]Record, 1+w.rng.IntN(10))
	for i := range list {
		list[i] = w.someRecord()
		list[i].Value = append(text("%d.%d ", s.id, len(s.sent)+i), list[i].Value...)
	}
	places := w.send(s, list)
	for i, pl := range places {
		if pl.Duplicate {
			w.fail("sender %d: record %q is called a repeat", s.id, list[i].Value)
		}
	}
	// Records of one range are stored in the order they were sent.
	for i, r := range list {
		w.store(r, places[i])
	}
	s.sent = append(s.sent, list...)
	w.did("sender %d stored %d records: %v", s.id, len(list), places)
}

// resend sends the tail of what was sent, and something new, in one go.
func (w *world) resend() {
	s := w.sender()
	w.restart(s)
}

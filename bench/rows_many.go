package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/wire"
)

// topicsOfMany is how many topics the connections of tcpMany share.
const topicsOfMany = 10_000

// tcpMany stores records one at a time over many connections in many topics, with one
// more client that asked for all of a topic and reads nothing of it, and without.
func tcpMany(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
		w.Over = OverTCP
		run, err := s.start(ctx, dir, w)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, run.Close()) }()
		outlets, err := run.spread(ctx, s)
		if err != nil {
			return nil, err
		}
		for i := range s.Runs {
			var free, beside crowded
			for half := range 2 {
				if half != i%2 { // each way round in turn: the second finds all warm
					beside, err = run.besideStalled(ctx, outlets)
				} else {
					free, err = run.crowd(ctx, outlets)
				}
				if err != nil {
					return samples, err
				}
			}
			s.Say("    run %d: %s against %s", i+1, Figure(beside.rate), Figure(free.rate))
			samples = append(samples, Sample{Engine: beside.rate, Floor: free.rate, Ratio: beside.rate / free.rate, Notes: map[string]float64{
				"p50 us": micros(beside.P50), "p99 us": micros(beside.P99), "p50 us without": micros(free.P50), "p99 us without": micros(free.P99)}})
		}
		return samples, nil
	}
}

// spread makes the topics and gives each connection its share of them.
func (r *Run) spread(ctx context.Context, s *Suite) (outlets [][]*client.Producer, err error) {
	s.Say("    making %d topics", topicsOfMany)
	name := func(i int) string { return fmt.Sprintf("many-%05d", i) }
	err = r.each(16, func(worker int) error {
		for i := worker; i < topicsOfMany; i += 16 {
			if err := r.e.CreateTopic(ctx, name(i), engine.TopicOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	outlets = make([][]*client.Producer, r.w.Workers)
	return outlets, r.each(len(outlets), func(worker int) error {
		for i := worker; i < topicsOfMany; i += r.w.Workers {
			p, err := r.net.clients[worker].NewProducer(api.ProducerOptions{Topic: name(i)})
			if err != nil {
				return err
			}
			outlets[worker] = append(outlets[worker], p)
			// Its first segment is opened here and not while the time is taken.
			if _, err := p.Produce(ctx, api.Record{Value: r.text[:r.w.RecordSize]}); err != nil {
				return err
			}
		}
		return nil
	})
}

// each runs work n times side by side.
func (r *Run) each(n int, work func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = work(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// besideStalled is crowd, with a reader that stalls.
func (r *Run) besideStalled(ctx context.Context, outlets [][]*client.Producer) (crowded, error) {
	end, err := r.stall(ctx)
	if err != nil {
		return crowded{}, err
	}
	c, err := r.crowd(ctx, outlets)
	return c, errors.Join(err, end())
}

type crowded struct {
	Latency
	rate float64
}

// crowd has each connection store one record at a time, in one of its topics after
// another, for a while.
func (r *Run) crowd(ctx context.Context, outlets [][]*client.Producer) (crowded, error) {
	rec := NewRecorder()
	start := time.Now()
	end := start.Add(time.Duration(r.w.Seconds * float64(time.Second)))
	err := r.each(len(outlets), func(worker int) error {
		for i := 0; time.Now().Before(end) && ctx.Err() == nil; i++ {
			p := outlets[worker][i%len(outlets[worker])]
			from := time.Now()
			if _, err := p.Produce(ctx, api.Record{Value: r.text[:r.w.RecordSize]}); err != nil {
				return err
			}
			rec.Record(time.Since(from))
		}
		return nil
	})
	l := rec.Latency()
	return crowded{l, float64(l.Count) / time.Since(start).Seconds()}, errors.Join(err, ctx.Err())
}

// stall connects a client that subscribes to the whole topic and reads nothing, and
// returns when the server waits for it. The returned function checks that it did to the
// end, and ends the connection.
func (r *Run) stall(ctx context.Context) (end func() error, err error) {
	nc, err := net.Dial("tcp", r.net.address)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() {
		if err != nil {
			nc.Close()
		}
	}()
	in := bufio.NewReaderSize(nc, 4096)
	var enc wire.Encoder
	ask := func(id uint32, key wire.Key, m wire.Message) (any, error) {
		if _, err := nc.Write(enc.Frame(key, 0, id, m, 0)); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		if key == wire.KeySubscribe {
			return nil, nil
		}
		b := make([]byte, wire.HeadSize)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		h, err := wire.ParseHead(b, wire.MaxFrame)
		if err != nil {
			return nil, err
		}
		b = make([]byte, h.Length)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
		return wire.Reply(h.Key, h.Flags, b)
	}
	if _, err := ask(1, wire.KeyHello, &wire.Hello{Magic: wire.Magic, MinVersion: wire.Version, MaxVersion: wire.Version, Client: "stalled"}); err != nil {
		return nil, err
	}
	m, err := ask(2, wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: topic, From: byte(api.FromStart().Kind)})
	if err != nil {
		return nil, err
	}
	if _, err := ask(3, wire.KeySubscribe, &wire.Subscribe{Consumer: m.(*wire.OpenConsumerReply).Consumer, Window: 1 << 30}); err != nil {
		return nil, err
	}
	// The server holds a page that it cannot write, and what it has sent stands still.
	for waited, last := 0, int64(-1); ; waited++ {
		st := r.net.server.Stats()
		if st.PageBytes > 0 && st.Sent == last {
			break
		}
		last = st.Sent
		if waited > 100 || ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), errors.New("bench: the server does not wait for the reader that reads nothing"))
		}
		time.Sleep(20 * time.Millisecond)
	}
	return func() error {
		defer nc.Close()
		if r.net.server.Stats().PageBytes == 0 {
			return errors.New("bench: the server gave the reader that reads nothing up: measure for less than its deadline")
		}
		return nil
	}, nil
}

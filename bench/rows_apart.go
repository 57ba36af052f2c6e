package bench

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
)

// tcpServer measures what a server in a process of its own costs for a GiB that it is
// sent, against the engine linked, whose process fills the batches as well, and a process
// that does nothing but receive.
func tcpServer(w Append) rowFunc {
	return func(ctx context.Context, s *Suite, dir string) (samples []Sample, err error) {
		linked, err := s.start(ctx, dir+"-linked", w)
		if err != nil {
			return nil, err
		}
		defer removeAll(dir + "-linked")
		defer func() { err = linked.finish(ctx, err) }()
		apart, err := s.startApart(ctx, Service{Dir: dir, Over: OverTCP}, w)
		if err != nil {
			return nil, err
		}
		defer func() { err = apart.finish(ctx, err) }()
		sink, err := s.serveApart(ctx, Service{Over: OverTCP, Sink: w.BatchBytes})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, sink.stop()) }()
		for i := range s.Runs {
			res, err := linked.linked(ctx, 1)
			if err != nil {
				return samples, err
			}
			receive, err := sink.received(ctx, w, s.Seconds)
			if err != nil {
				return samples, err
			}
			serve, rate, err := apart.measure(ctx, s.Seconds)
			if err != nil {
				return samples, err
			}
			floor := res.CPUPerGiB() + receive
			s.Say("    run %d: %s against %s", i+1, Figure(serve), Figure(floor))
			samples = append(samples, Sample{Engine: serve, Floor: floor, Ratio: serve / floor, Notes: map[string]float64{
				"linked s/GiB": res.CPUPerGiB(), "receive s/GiB": receive, "MB/s": rate}})
		}
		return samples, nil
	}
}

// received is the processor time of a GiB that a sink takes.
func (p *servant) received(ctx context.Context, w Append, seconds float64) (float64, error) {
	to, err := net.ResolveTCPAddr("tcp", p.address)
	if err != nil {
		return 0, err
	}
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	bytes, _, err := sendFrames(ctx, to, w.Workers, w.InFlight, w.BatchBytes, seconds)
	if err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return (after - before).Seconds() / (float64(bytes) / (1 << 30)), err
}

// apart is a workload whose server is another process.
type apart struct {
	*Run
	server *servant
	stores bool // what it is sent
}

func (s *Suite) startApart(ctx context.Context, v Service, w Append) (a *apart, err error) {
	p, err := s.serveApart(ctx, v)
	if err != nil {
		return nil, err
	}
	w.SegmentBytes, w.RetainBytes = s.SegmentBytes, s.RetainBytes
	a = &apart{&Run{w: w, text: w.text(), seqs: make([]lastSeq, w.Workers), net: &remote{address: p.address}}, p, v.Dir != ""}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.close())
		}
	}()
	for i := range w.Workers {
		c, err := p.dial(ctx, client.Options{MemoryBytes: max(64<<20, 2*(w.InFlight+1)*w.BatchBytes)})
		if err != nil {
			return a, err
		}
		a.net.clients = append(a.net.clients, c)
		if i == 0 && v.Dir != "" {
			if err := c.CreateTopic(ctx, topic, api.TopicOptions{}); err != nil {
				return a, err
			}
		}
		p, err := c.NewProducer(a.producerOptions())
		if err != nil {
			return a, err
		}
		a.net.outlets = append(a.net.outlets, remoteOutlet{p})
	}
	if v.Dir == "" {
		return a, nil
	}
	// Until files are written again.
	for written := int64(0); written < s.RetainBytes+4*s.SegmentBytes; {
		n, _, err := a.load(ctx, 0.1)
		if err != nil {
			return a, err
		}
		written += n
	}
	return a, nil
}

// dial connects to the process.
func (p *servant) dial(ctx context.Context, o client.Options) (*client.Client, error) {
	switch p.over {
	case OverShm, OverTrusted:
		return client.DialShm(ctx, p.address, o)
	case OverUnix:
		return client.Dial(ctx, "unix:"+p.address, o)
	}
	return client.Dial(ctx, p.address, o)
}

// load sends for a while and answers the payload bytes that were acknowledged.
func (a *apart) load(ctx context.Context, seconds float64) (bytes int64, took time.Duration, err error) {
	bytes, sent, err := a.send(ctx, a.w, seconds)
	return bytes, sent.Took, err
}

// send is load of another shape, and tells more.
func (a *apart) send(ctx context.Context, w Append, seconds float64) (bytes int64, sent Sent, err error) {
	senders := make([]*sender, w.Workers)
	load := Load{Workers: w.Workers, InFlight: w.InFlight + w.Ahead, Waits: w.waits(), Duration: time.Duration(seconds * float64(time.Second))}
	sent, err = load.Run(ctx, func(i int) (Sender, error) {
		senders[i] = a.sender(w, i)
		return senders[i], nil
	})
	for _, s := range senders {
		bytes += s.acked.Load() * int64(w.RecordSize)
	}
	return bytes, sent, errors.Join(err, sent.FirstError)
}

// measure is the server's processor time for a GiB, and the rate in MB/s.
func (a *apart) measure(ctx context.Context, seconds float64) (cpu, rate float64, err error) {
	before, err := a.server.cpu()
	if err != nil {
		return 0, 0, err
	}
	bytes, took, err := a.load(ctx, seconds)
	if err != nil {
		return 0, 0, err
	}
	after, err := a.server.cpu()
	return (after - before).Seconds() / (float64(bytes) / (1 << 30)), float64(bytes) / 1e6 / took.Seconds(), err
}

func (a *apart) close() (err error) {
	for _, o := range a.net.outlets {
		err = errors.Join(err, o.(remoteOutlet).Close(context.Background()))
	}
	for _, c := range a.net.clients {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, a.server.stop())
}

// ServantOptions are those of the engine that [Serve] serves: files are recycled.
func ServantOptions(segment, retain int64) engine.Options {
	o := engine.Options{SegmentBytes: segment, RawWait: true}
	recycle(&o, retain)
	return o
}

package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
)

// The process apart says where it listens and what it has used, and ends with its input.
func TestServe(t *testing.T) {
	for _, sink := range []int{0, 4096} {
		in, ask := io.Pipe()
		said, out := io.Pipe()
		ended := make(chan error, 1)
		o := ServantOptions(1<<20, 2<<20)
		o.IO = "pool"
		go func() { ended <- Serve(t.Context(), Service{Dir: t.TempDir(), Over: OverTCP, Sink: sink}, o, in, out) }()
		lines := bufio.NewScanner(said)
		lines.Scan()
		address := lines.Text()
		if sink == 0 {
			c, err := client.Dial(t.Context(), address, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.CreateTopic(t.Context(), topic, api.TopicOptions{}); err != nil {
				t.Error(err)
			}
			c.Close()
		} else if addr, err := net.ResolveTCPAddr("tcp", address); err != nil {
			t.Error(err)
		} else if n, _, err := sendFrames(t.Context(), addr, 2, 4, sink, 0.05); n < int64(sink) || err != nil {
			t.Errorf("%d bytes were sent: %v", n, err)
		}
		fmt.Fprintln(ask, "cpu")
		lines.Scan()
		if n, err := strconv.ParseInt(lines.Text(), 10, 64); n <= 0 || err != nil {
			t.Errorf("it says %q", lines.Text())
		}
		ask.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// The same through shared memory: an engine that writes from there, one that stores
// nothing, and a bare ring.
func TestServeShared(t *testing.T) {
	for _, v := range []Service{{Dir: t.TempDir(), Over: OverTrusted}, {Over: OverShm}, {Over: OverShm, Sink: 1}} {
		in, ask := io.Pipe()
		said, out := io.Pipe()
		ended := make(chan error, 1)
		o := ServantOptions(1<<20, 2<<20)
		o.IO = "pool"
		go func() { ended <- Serve(t.Context(), v, o, in, out) }()
		lines := bufio.NewScanner(said)
		lines.Scan()
		address := lines.Text()
		if v.Sink > 0 {
			if _, l, err := ringRate(t.Context(), address, 1000, 1, 0.05); l.Count == 0 || err != nil {
				t.Errorf("%d round trips, %v", l.Count, err)
			}
			if rate, _, err := ringRate(t.Context(), address, 1000, 8, 0.05); rate <= 0 || err != nil {
				t.Errorf("%g a second, %v", rate, err)
			}
		} else {
			c, err := client.DialShm(t.Context(), address, client.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if v.Dir != "" {
				if err := c.CreateTopic(t.Context(), topic, api.TopicOptions{}); err != nil {
					t.Error(err)
				}
			}
			p, err := c.NewProducer(api.ProducerOptions{Topic: topic})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Produce(t.Context(), api.Record{Value: make([]byte, 100_000)}); err != nil {
				t.Errorf("%+v: %v", v, err)
			}
			if err := errors.Join(p.Close(t.Context()), c.Close()); err != nil {
				t.Error(err)
			}
		}
		ask.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		os.RemoveAll(filepath.Dir(address))
	}
}

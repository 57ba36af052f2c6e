package bench

import (
	"bufio"
	"fmt"
	"io"
	"net"
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
		go func() { ended <- Serve(t.Context(), t.TempDir(), o, sink, in, out) }()
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

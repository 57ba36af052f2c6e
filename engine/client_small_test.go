package engine

import (
	"bytes"
	"errors"
	"testing"
)

// A server with less memory than the client takes smaller batches: one that is too large for
// it is refused with what to do, and the next ones go on.
func TestBatchLargerThanTheServerTakes(t *testing.T) {
	e := open(t, t.TempDir(), Options{ArenaBytes: 4 << 20})
	must(t, e.CreateTopic(within(t), "t", TopicOptions{}))
	c := dial(t, serve(t, e))
	p, err := c.NewProducer(ProducerOptions{Topic: "t", BatchBytes: 4 << 20})
	must(t, err)
	for range 3 {
		if _, err := p.Produce(within(t), Record{Value: bytes.Repeat([]byte("x"), 3<<20)}); !errors.Is(err, ErrRecordTooLarge) {
			t.Fatal(err)
		}
		_, err = p.Produce(within(t), Record{Value: []byte("small")})
		must(t, err)
	}
	must(t, p.Close(within(t)))
}

package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/ringfence/ringfence/engine"
)

// opened is an engine in a new directory, with a topic.
func opened(topic string) (*engine.Engine, func()) {
	dir, err := os.MkdirTemp("", "ringfence-example-")
	if err != nil {
		log.Fatal(err)
	}
	e, err := engine.Open(dir, engine.Options{ArenaBytes: 8 << 20})
	if err != nil {
		log.Fatal(err)
	}
	if err := e.CreateTopic(context.Background(), topic, engine.TopicOptions{}); err != nil {
		log.Fatal(err)
	}
	return e, func() {
		if err := e.Close(); err != nil {
			log.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			log.Fatal(err)
		}
	}
}

// An engine lives in one directory and one process. What it answered for is on
// stable storage.
func Example() {
	dir, err := os.MkdirTemp("", "ringfence-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	e, err := engine.Open(dir, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := e.CreateTopic(ctx, "greetings", engine.TopicOptions{}); err != nil {
		log.Fatal(err)
	}
	p, err := e.NewProducer(engine.ProducerOptions{Topic: "greetings"})
	if err != nil {
		log.Fatal(err)
	}
	place, err := p.Produce(ctx, engine.Record{Key: []byte("en"), Value: []byte("hello")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored in range", place.Range, "at offset", place.First)
	if err := e.Close(); err != nil { // closes the producer too
		log.Fatal(err)
	}

	e, err = engine.Open(dir, engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	c, err := e.NewConsumer(engine.ConsumerOptions{Topic: "greetings", From: engine.FromStart()})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	page, err := c.Poll(ctx, 100)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range page.Records {
		fmt.Printf("%s: %s\n", r.Key, r.Value)
	}
	// Output:
	// stored in range 0 at offset 0
	// en: hello
}

// Append does not wait for the disk; its callback hears what became of the record.
func ExampleProducer_Append() {
	e, done := opened("events")
	defer done()
	ctx := context.Background()
	p, err := e.NewProducer(engine.ProducerOptions{Topic: "events", Linger: time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	for i := range 3 {
		r := engine.Record{Key: []byte("user-7"), Value: fmt.Append(nil, "click ", i)}
		err := p.Append(ctx, r, func(place engine.Placement, err error) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("durable: offset", place.First)
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil { // all callbacks have run
		log.Fatal(err)
	}
	// Output:
	// durable: offset 0
	// durable: offset 1
	// durable: offset 2
}

// A program that may be killed and started again sends the same records in the same
// order under the same ID: each is stored once.
func ExampleProducerOptions_fixedID() {
	e, done := opened("lines")
	defer done()
	ctx := context.Background()
	for run := range 2 {
		p, err := e.NewProducer(engine.ProducerOptions{Topic: "lines", ID: 42})
		if err != nil {
			log.Fatal(err)
		}
		for _, line := range []string{"first", "second"} {
			place, err := p.Produce(ctx, engine.Record{Value: []byte(line)})
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println("run", run, line, "repeat:", place.Duplicate)
		}
		if err := p.Close(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// run 0 first repeat: false
	// run 0 second repeat: false
	// run 1 first repeat: true
	// run 1 second repeat: true
}

// A Batch is memory of the engine that the caller fills, and that goes to the disk
// from where it lies.
func ExampleBatch() {
	e, done := opened("metrics")
	defer done()
	ctx := context.Background()
	p, err := e.NewProducer(engine.ProducerOptions{Topic: "metrics"})
	if err != nil {
		log.Fatal(err)
	}
	b, err := p.NewBatch(ctx, 1<<20)
	if err != nil {
		log.Fatal(err)
	}
	for i := range 1000 {
		key, value, err := b.Reserve(8, 100) // to be filled in place
		if errors.Is(err, engine.ErrBatchFull) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		copy(key, fmt.Sprintf("%08d", i))
		clear(value)
		if err := b.Commit(key); err != nil {
			log.Fatal(err)
		}
	}
	stored := make(chan error, 1)
	err = b.Send(ctx, func(place engine.Placement, err error) {
		fmt.Println("records", place.First, "to", place.Last)
		stored <- err
	})
	if err != nil {
		b.Discard() // it was not sent
		log.Fatal(err)
	}
	if err := <-stored; err != nil {
		log.Fatal(err)
	}
	// Output:
	// records 0 to 999
}

// A group keeps its place in the topic by name: whoever reads for it next goes on
// behind the last Commit.
func ExampleConsumer_group() {
	e, done := opened("jobs")
	defer done()
	ctx := context.Background()
	p, err := e.NewProducer(engine.ProducerOptions{Topic: "jobs"})
	if err != nil {
		log.Fatal(err)
	}
	for i := range 4 {
		if _, err := p.Produce(ctx, engine.Record{Key: []byte("k"), Value: fmt.Append(nil, "job ", i)}); err != nil {
			log.Fatal(err)
		}
	}
	for member := range 2 {
		c, err := e.NewConsumer(engine.ConsumerOptions{Topic: "jobs", Group: "workers"})
		if err != nil {
			log.Fatal(err)
		}
		for range 2 {
			page, err := c.Poll(ctx, 1)
			if err != nil {
				log.Fatal(err)
			}
			for _, s := range page.Skips { // retention was faster than the group
				fmt.Println("missed", s.Offsets, "records")
			}
			for _, r := range page.Records {
				fmt.Printf("member %d does %s\n", member, r.Value)
			}
		}
		if err := c.Commit(ctx); err != nil {
			log.Fatal(err)
		}
		if err := c.Close(); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// member 0 does job 0
	// member 0 does job 1
	// member 1 does job 2
	// member 1 does job 3
}

// A range that takes more than its share is split; producers and consumers follow
// by themselves, and records with equal keys keep their order.
func ExampleEngine_SplitRange() {
	e, done := opened("orders")
	defer done()
	ctx := context.Background()
	left, right, err := e.SplitRange(ctx, "orders", 0)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("range 0 became", left, "and", right)
	merged, err := e.MergeRanges(ctx, "orders", left, right)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("they became", merged)
	// Output:
	// range 0 became 1 and 2
	// they became 3
}

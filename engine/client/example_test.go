package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
)

// The program of the README, over the network.
func Example() {
	run := func(ctx context.Context) (err error) {
		c, err := client.Dial(ctx, "localhost:4040", client.Options{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		if err := c.CreateTopic(ctx, "orders", api.TopicOptions{}); err != nil && !errors.Is(err, client.ErrTopicExists) {
			return err
		}
		p, err := c.NewProducer(api.ProducerOptions{Topic: "orders"})
		if err != nil {
			return err
		}
		at, err := p.Produce(ctx, api.Record{Key: []byte("customer-7"), Value: []byte("two pears")})
		if client.Unknown(err) {
			fmt.Println("it may be stored, or not:", err)
		}
		if err != nil {
			return err
		}
		fmt.Println("durable at offset", at.First)
		return p.Close(ctx)
	}
	if err := run(context.Background()); err != nil {
		log.Print(err)
	}
}

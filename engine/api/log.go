package api

import (
	"context"
	"iter"
)

// Log is what a program can do with topics, linked or over the network. engine.Engine and
// client.Client have these methods and describe them; their NewProducer and NewConsumer
// return types of their own, which implement Producer and Consumer.
type Log interface {
	Admin
	Access
	Lists
	NewProducer(ProducerOptions) (Producer, error)
	NewConsumer(ConsumerOptions) (Consumer, error)
	Close() error
}

// Admin makes, changes and describes topics, policies and groups.
type Admin interface {
	CreateTopic(ctx context.Context, name string, o TopicOptions) error
	DeleteTopic(ctx context.Context, name string) error
	Topics(ctx context.Context) ([]TopicInfo, error)
	Describe(ctx context.Context, name string) (TopicDetail, error)
	SplitRange(ctx context.Context, topic string, seq uint32) (left, right uint32, err error)
	MergeRanges(ctx context.Context, topic string, a, b uint32) (uint32, error)
	Roll(ctx context.Context, topic string) (int, error)

	SetPolicy(ctx context.Context, name string, p Policy) error
	DeletePolicy(ctx context.Context, name string) error
	ForgetPolicy(ctx context.Context, name string) error
	Policies(ctx context.Context) (map[string]Policy, error)
	BindPolicy(ctx context.Context, topic, policy string) error

	Groups(ctx context.Context, topic string) ([]string, error)
	DescribeGroup(ctx context.Context, topic, group string) (GroupInfo, error)
	DeleteGroup(ctx context.Context, topic, group string) error
}

// Lists visits, by name, what there may be very many of, without holding all of it in
// memory. What is made or removed meanwhile may be visited or not. A visit ends after an
// error.
type Lists interface {
	AllTopics(ctx context.Context) iter.Seq2[TopicInfo, error]
	AllGroups(ctx context.Context, topic string) iter.Seq2[string, error]
	AllUsers(ctx context.Context) iter.Seq2[User, error]
}

// Producer sends records to one topic.
type Producer interface {
	ID() uint64
	Produce(ctx context.Context, r Record) (Placement, error)
	Append(ctx context.Context, r Record, done func(Placement, error)) error
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// Consumer reads one topic.
type Consumer interface {
	Poll(ctx context.Context, max int) (Page, error)
	Fetch(max int) (Page, error)
	Cursor() string
	Commit(ctx context.Context) error
	Reset(ctx context.Context) error
	Lag() (uint64, error)
	Ranges() ([]GroupRange, error)
	Close() error
}

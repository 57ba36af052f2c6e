package frontend

import (
	"fmt"

	"github.com/ringfence/ringfence/fence"
)

// Learn makes slices the routes of a topic, for a frontend that only routes: somebody else
// told it which ranges the topic has, and its view knows nothing of them. They are in the
// order of their positions and tile the keyspace. The topic's version changes if they are
// others than before; a topic of another identity takes the place of the one before, as
// when the view says so.
func (f *Frontend) Learn(name string, id fence.TopicID, slices []Slice) (*Topic, error) {
	next := uint64(0)
	for _, s := range slices {
		if s.Range.Topic != id || uint64(s.First) != next || s.Last < s.First {
			return nil, topicErr(name, fmt.Errorf("%w: range %d owns [%d, %d] behind %d", ErrOptions, s.Range.Seq, s.First, s.Last, next))
		}
		next = uint64(s.Last) + 1
	}
	if next != positions {
		return nil, topicErr(name, fmt.Errorf("%w: no range owns %d", ErrOptions, next))
	}
	f.meta.Lock() // one who learns at a time
	defer f.meta.Unlock()
	t := f.names.get(name)
	if t != nil && t.id != id {
		t.retire()
		t = nil
	}
	if t == nil {
		t = &Topic{id: id, name: name, shard: f.shard(id)}
	}
	t.learn(slices, &f.epoch)
	f.names.set(name, t)
	return t, nil
}

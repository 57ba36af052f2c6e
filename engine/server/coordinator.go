package server

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/wire"
)

// coordinator shares the ranges that groups have to read out among their members. It is
// a passive value: its caller brings the time, and the ranges that a group may read.
//
// A range has an owner, whose it is to be, and a holder, who may read and commit it now.
// Where they differ the holder is told by its next assignment, which lacks the range. It
// commits what it has processed and says that it has adopted that assignment, and only
// then the owner gets the range. So nothing is read by two at a time, and nobody else
// stops for it. A holder that is silent, or does not let go for as long as a session
// lasts, loses the range all the same: its commits are refused from then on.
//
//	owner   holder                      the range is
//	M       M                           M's
//	M       nobody                      M's from the next generation on
//	M       N, told in generation asked  N's, until N adopts asked or later
//	nobody  N, told in generation asked  finished, or it has no member to go to
//
// What the coordinator knows it has in memory alone. After a restart the members are
// unknown, join again and go on where the group has committed; generations go on rising.
type coordinator struct {
	session    time.Duration // a member that is silent for so long is out
	maxGroups  int
	maxMembers int    // of one group
	last       uint64 // the newest generation of any group: none comes twice
	handOvers  int64  // ranges that went from one member to another
	groups     map[groupKey]*group
}

type groupKey struct{ topic, name string }

type group struct {
	key        groupKey
	identity   string // of the topic
	generation uint64
	changed    chan struct{} // closed with the generation
	members    map[string]*member
	grants     map[uint32]*grant // by range
}

type member struct {
	instance uint64 // of the process that has the name
	joined   uint64 // the generation it came in; with an older one comes the process before it
	seen     time.Time
}

// grant is a range that is to be read, or that its holder has not let go.
type grant struct {
	unread  bool // it is one of those that the group may read
	owner   string
	holder  string
	before  string    // the holder before
	since   uint64    // the generation in which the holder got it
	asked   uint64    // the generation in which it was told to let go; 0: it was not
	until   time.Time // how long it may take for that
	over    bool      // it may commit no more, and is the holder's until what it commits now is done
	commits int       // of the holder under way
}

// assignment is what a member is told.
type assignment struct {
	generation uint64
	ranges     []uint32 // ascending
}

func newCoordinator(after uint64, session time.Duration, maxGroups, maxMembers int) *coordinator {
	return &coordinator{session: session, maxGroups: maxGroups, maxMembers: maxMembers, last: after, groups: map[groupKey]*group{}}
}

// join makes a process a member, or finds it one already. A process that takes the name
// of another, because it was started again, takes its place.
func (c *coordinator) join(now time.Time, key groupKey, identity, name string, instance uint64, unread []uint32) (assignment, error) {
	if err := api.CheckMember(name); err != nil {
		return assignment{}, refusal(wire.CodeInvalidGroup, "topic %q, group %q: %s", key.topic, key.name, err)
	}
	g := c.groups[key]
	if g != nil && g.identity != identity {
		c.drop(g) // the topic was deleted, and another one has its name
		g = nil
	}
	if g == nil {
		if len(c.groups) >= c.maxGroups {
			c.sweep(now)
		}
		if len(c.groups) >= c.maxGroups {
			return assignment{}, refusal(wire.CodeOverloaded, "%d groups have members, which is the most: raise MaxGroups", len(c.groups))
		}
		g = &group{key: key, identity: identity, changed: make(chan struct{}), members: map[string]*member{}, grants: map[uint32]*grant{}}
	}
	c.evict(now, g)
	m := g.members[name]
	switch {
	case m == nil && len(g.members) >= c.maxMembers:
		return assignment{}, refusal(wire.CodeOverloaded, "topic %q: group %q has as many members as it may, %d", key.topic, key.name, len(g.members))
	case m == nil:
		m = &member{instance: instance}
		g.members[name] = m
		m.joined = c.advance(g)
	case m.instance != instance:
		m.instance, m.joined = instance, c.advance(g)
		for _, r := range g.grants {
			switch {
			case r.holder != name:
			case r.owner != name:
				r.end()
			default:
				r.since = m.joined // what the process before commits late is refused
			}
		}
	}
	c.groups[key] = g
	m.seen = now
	c.share(now, g, unread)
	return g.assignment(name), nil
}

// heartbeat says that a member is there and has let go of everything that it did not have
// in a generation.
func (c *coordinator) heartbeat(now time.Time, key groupKey, name string, adopted uint64) (assignment, error) {
	g, m, err := c.member(now, key, name, adopted)
	if err != nil {
		return assignment{}, err
	}
	m.seen = now
	for _, r := range g.grants {
		if r.holder == name && r.asked != 0 && r.asked <= adopted {
			r.end()
		}
	}
	c.settle(now, g)
	return g.assignment(name), nil
}

// look is a member's assignment now.
func (c *coordinator) look(now time.Time, key groupKey, name string, generation uint64) (assignment, error) {
	g, _, err := c.member(now, key, name, generation)
	if err != nil {
		return assignment{}, err
	}
	return g.assignment(name), nil
}

// leave takes a member out; one that is not there has left.
func (c *coordinator) leave(now time.Time, key groupKey, name string, generation uint64) error {
	g, m, err := c.member(now, key, name, generation)
	switch {
	case m == nil:
		return nil
	case err != nil:
		return err
	}
	g.remove(name)
	c.advance(g)
	c.settle(now, g)
	return nil
}

// update says which ranges a group may read now.
func (c *coordinator) update(now time.Time, key groupKey, identity string, unread []uint32) {
	g := c.groups[key]
	switch {
	case g == nil:
	case g.identity != identity:
		c.drop(g)
	default:
		c.evict(now, g)
		c.share(now, g, unread)
	}
}

// pending is a commit under way: the ranges stay with their holder until it is done.
type pending struct {
	g      *group
	grants []*grant
}

// begin lets a member commit ranges that are its own, until end.
func (c *coordinator) begin(now time.Time, key groupKey, name string, generation uint64, ranges []uint32) (pending, error) {
	g, err := c.holds(now, key, name, generation, ranges)
	if err != nil {
		return pending{}, err
	}
	p := pending{g: g}
	for _, seq := range ranges {
		g.grants[seq].commits++
		p.grants = append(p.grants, g.grants[seq])
	}
	return p, nil
}

func (c *coordinator) end(now time.Time, p pending) {
	for _, r := range p.grants {
		if r.commits--; r.over {
			r.end()
		}
	}
	c.settle(now, p.g)
}

// holds refuses a member that does not have all of the ranges, or got one of them anew
// after its generation.
func (c *coordinator) holds(now time.Time, key groupKey, name string, generation uint64, ranges []uint32) (*group, error) {
	g, m, err := c.member(now, key, name, generation)
	if err != nil {
		return nil, err
	}
	m.seen = now
	for _, seq := range ranges {
		if r := g.grants[seq]; r == nil || r.holder != name || r.over || generation < r.since {
			return nil, refusal(wire.CodeStaleGeneration, "topic %q, group %q: range %d is not member %q's in generation %d: take what the next heartbeat answers",
				key.topic, key.name, seq, name, generation)
		}
	}
	return g, nil
}

// member finds a member, after those are out whose time is over. With a refusal for its
// generation there is a member.
func (c *coordinator) member(now time.Time, key groupKey, name string, generation uint64) (*group, *member, error) {
	g := c.groups[key]
	if g != nil {
		if c.evict(now, g) {
			c.settle(now, g)
		}
	}
	if g == nil || g.members[name] == nil {
		return nil, nil, refusal(wire.CodeUnknownMember, "topic %q: group %q has no member %q: it was silent for %s, or the server was started again; join again",
			key.topic, key.name, name, c.session)
	}
	m := g.members[name]
	if generation < m.joined || generation > g.generation {
		return g, m, refusal(wire.CodeStaleGeneration, "topic %q, group %q: generation %d is not one of member %q: another process has joined under its name",
			key.topic, key.name, generation, name)
	}
	return g, m, nil
}

// evict takes out who was silent for a session, and ranges from who does not let them go.
func (c *coordinator) evict(now time.Time, g *group) (changed bool) {
	for name, m := range g.members {
		if now.Sub(m.seen) >= c.session {
			g.remove(name)
			c.advance(g)
			changed = true
		}
	}
	for _, r := range g.grants {
		if r.asked != 0 && !r.over && !now.Before(r.until) {
			r.end()
			changed = true
		}
	}
	return changed
}

// sweep forgets the groups whose members are all silent.
func (c *coordinator) sweep(now time.Time) {
	for _, g := range c.groups {
		if c.evict(now, g) {
			c.settle(now, g)
		}
	}
}

// due is when a group changes by itself at the earliest, if nobody is heard of.
func (c *coordinator) due(g *group) time.Time {
	var first time.Time
	sooner := func(t time.Time) {
		if first.IsZero() || t.Before(first) {
			first = t
		}
	}
	for _, m := range g.members {
		sooner(m.seen.Add(c.session))
	}
	for _, r := range g.grants {
		if r.asked != 0 && !r.over {
			sooner(r.until)
		}
	}
	return first
}

// share makes the ranges that may be read those of the group, and shares them out.
func (c *coordinator) share(now time.Time, g *group, unread []uint32) {
	for _, r := range g.grants {
		r.unread = false
	}
	for _, seq := range unread {
		if g.grants[seq] == nil {
			g.grants[seq] = &grant{}
		}
		g.grants[seq].unread = true
	}
	c.settle(now, g)
}

// settle gives every range that is to be read an owner, ranges without a holder to their
// owners, and the group a new generation if that changes what anybody has. It moves no
// more ranges than it must: those of nobody go to whoever has least, and then one at a
// time from who has most to who has least, while that evens them out.
func (c *coordinator) settle(now time.Time, g *group) {
	if len(g.members) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(g.grants)), func(r *grant) bool { return r.commits > 0 }) {
		c.drop(g)
		return
	}
	g.balance()
	next := c.last + 1
	changed := false
	for seq, r := range g.grants {
		if r.holder == "" && r.owner != "" {
			if r.before != "" && r.before != r.owner {
				c.handOvers++
			}
			r.holder, r.since = r.owner, next
			changed = true
		}
		switch {
		case r.holder == r.owner && !r.over:
			if r.asked != 0 { // it has it again
				r.asked = 0
				changed = true
			}
		case r.asked == 0:
			r.asked, r.until = next, now.Add(c.session)
			changed = true
		}
		if !r.unread && r.holder == "" {
			delete(g.grants, seq)
		}
	}
	if changed {
		c.advance(g)
	}
}

// balance chooses the owners.
func (g *group) balance() {
	if len(g.members) == 0 {
		for _, r := range g.grants {
			r.owner = ""
		}
		return
	}
	owned := make(map[string][]uint32, len(g.members))
	for name := range g.members {
		owned[name] = nil
	}
	var free []uint32
	for _, seq := range slices.Sorted(maps.Keys(g.grants)) {
		r := g.grants[seq]
		if !r.unread || g.members[r.owner] == nil {
			r.owner = ""
		}
		switch {
		case !r.unread:
		case r.owner == "":
			free = append(free, seq)
		default:
			owned[r.owner] = append(owned[r.owner], seq)
		}
	}
	names := slices.Sorted(maps.Keys(owned))
	fewer := func(a, b string) int { return cmp.Compare(len(owned[a]), len(owned[b])) }
	give := func(seq uint32, to string) {
		g.grants[seq].owner = to
		owned[to] = append(owned[to], seq)
	}
	for _, seq := range free {
		give(seq, slices.MinFunc(names, fewer))
	}
	for {
		least, most := slices.MinFunc(names, fewer), slices.MaxFunc(names, fewer)
		if len(owned[most])-len(owned[least]) <= 1 {
			return
		}
		// One that it does not have yet, if there is one, or the last.
		i := slices.IndexFunc(owned[most], func(seq uint32) bool { return g.grants[seq].holder != most })
		if i < 0 {
			i = len(owned[most]) - 1
		}
		seq := owned[most][i]
		owned[most] = slices.Delete(owned[most], i, i+1)
		give(seq, least)
	}
}

// remove takes a member out with all that it holds.
func (g *group) remove(name string) {
	delete(g.members, name)
	for _, r := range g.grants {
		if r.holder == name {
			r.end()
		}
	}
}

// end takes a range from its holder, once nothing of what that commits is under way.
func (r *grant) end() {
	r.over = r.commits > 0
	if !r.over {
		r.holder, r.before, r.since, r.asked, r.until = "", r.holder, 0, 0, time.Time{}
	}
}

func (g *group) assignment(name string) assignment {
	a := assignment{generation: g.generation}
	for seq, r := range g.grants {
		if r.holder == name && r.owner == name && !r.over {
			a.ranges = append(a.ranges, seq)
		}
	}
	slices.Sort(a.ranges)
	return a
}

// advance gives a group a new generation.
func (c *coordinator) advance(g *group) uint64 {
	c.last++
	g.generation = c.last
	close(g.changed)
	g.changed = make(chan struct{})
	return g.generation
}

// drop forgets a group. Its members join again, if there are any.
func (c *coordinator) drop(g *group) {
	if c.groups[g.key] == g {
		delete(c.groups, g.key)
		c.advance(g) // whoever waits looks again
	}
}

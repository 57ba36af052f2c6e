package server

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ringfence/ringfence/engine/wire"
)

// auditEvery is how often the refusals of one connection's fetches and frames are told: a
// client may repeat them as fast as it likes.
const auditEvery = time.Second

// seldom bounds what goes to the log of what clients can bring about as often as they
// like: one in a second is told to everybody, the others to whoever debugs. All are
// counted where they happen.
type seldom struct{ last atomic.Int64 }

func (s *seldom) level(of slog.Level) slog.Level {
	now, last := time.Now().UnixNano(), s.last.Load()
	if now-last >= int64(auditEvery) && s.last.CompareAndSwap(last, now) {
		return of
	}
	return slog.LevelDebug
}

// audit tells what became of a request that is one of operators, or that was refused.
func (c *conn) audit(key wire.Key, who Identity, m any, err error) {
	if c.s.opts.Audit == nil {
		return
	}
	about, ofOperators := subject(key, m)
	if ofOperators || denied(err) {
		c.tell(key, who, about, err)
	}
}

// refused tells of a refusal that may come again and again.
func (c *conn) refused(key wire.Key, who Identity, about string, err error) {
	if c.s.opts.Audit == nil || !denied(err) {
		return
	}
	now, last := time.Now().UnixNano(), c.refusals.Load()
	if now-last >= int64(auditEvery) && c.refusals.CompareAndSwap(last, now) {
		c.tell(key, who, about, err)
	}
}

func (c *conn) tell(key wire.Key, who Identity, about string, err error) {
	c.s.opts.Audit(Event{User: who.User, Remote: c.nc.RemoteAddr(), Connection: c.id, Request: key, About: about, Err: err})
}

func denied(err error) bool {
	return errors.Is(err, wire.CodePermissionDenied) || errors.Is(err, wire.CodeNotAuthenticated)
}

// subject is what a request is about, and whether it changes what belongs to operators.
func subject(key wire.Key, m any) (about string, ofOperators bool) {
	switch m := m.(type) {
	case *wire.CreateTopic:
		return m.Topic, true
	case *wire.Topic:
		return m.Topic, key != wire.KeyRoute // which every producer asks for
	case *wire.DescribeTopic:
		return m.Topic, false
	case *wire.SplitRange:
		return fmt.Sprintf("%s, range %d", m.Topic, m.Range), true
	case *wire.MergeRanges:
		return fmt.Sprintf("%s, ranges %d and %d", m.Topic, m.A, m.B), true
	case *wire.BindPolicy:
		return m.Topic, true
	case *wire.SetPolicy:
		return m.Policy.Name, true
	case *wire.DeletePolicy:
		return m.Name, true
	case *wire.PutUser:
		return m.User, true
	case *wire.ChangePassword:
		return "", true
	case *wire.DeleteUser:
		return m.User, true
	case *wire.UserGrant:
		return fmt.Sprintf("%s: %s", m.User, grantOf(m.Grant)), true
	case *wire.CreateToken:
		return m.User, true
	case *wire.DeleteToken:
		return m.Id, true
	case *wire.SetQuota:
		return fmt.Sprintf("%s: %d records/s, %d bytes/s", m.User, m.Quota.Records, m.Quota.Bytes), true
	case *wire.Commit:
		return m.Topic + "/" + m.Group, m.Reset
	case *wire.Group:
		return m.Topic + "/" + m.Group, true
	case *wire.DescribeGroup:
		return m.Topic + "/" + m.Group, false
	case *wire.ListMembers:
		return m.Topic + "/" + m.Group, false
	case *wire.ListGroups:
		return m.Topic, false
	case *wire.JoinGroup:
		return m.Topic + "/" + m.Group, false
	case *wire.OpenProducer:
		return m.Topic, false
	case *wire.OpenConsumer:
		return m.Topic, false
	}
	return "", false
}

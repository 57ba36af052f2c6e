package engine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/client"
	"github.com/ringfence/ringfence/engine/wire"
)

// Names that nothing can have are refused by every call that takes one, also by those that
// only look, with the same error linked and through a server.
func TestNamesAreRefusedEitherWay(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	ctx := within(t)
	c := dial(t, serve(t, e))
	for way, l := range map[string]api.Log{"linked": linkedLog{e}, "served": servedLog{c}} {
		for _, bad := range []string{"", "a\x01b", "a\u0085", "\xff", strings.Repeat("n", 256)} {
			topic, group, user, policy := map[string]error{}, map[string]error{}, map[string]error{}, map[string]error{}
			topic["describe"] = errOf(l.Describe(ctx, bad))
			topic["groups"] = errOf(l.Groups(ctx, bad))
			topic["all groups"] = errOf(api.Collect(l.AllGroups(ctx, bad)))
			topic["describe group"] = errOf(l.DescribeGroup(ctx, bad, "g"))
			topic["delete group"] = l.DeleteGroup(ctx, bad, "g")
			topic["consumer"] = errOf(l.NewConsumer(api.ConsumerOptions{Topic: bad}))
			topic["producer"] = errOf(l.NewProducer(api.ProducerOptions{Topic: bad}))
			topic["create"], topic["delete"] = l.CreateTopic(ctx, bad, api.TopicOptions{}), l.DeleteTopic(ctx, bad)
			topic["bind"], topic["roll"] = l.BindPolicy(ctx, bad, ""), errOf(l.Roll(ctx, bad))
			if bad != "" { // no group
				group["describe"] = errOf(l.DescribeGroup(ctx, "t", bad))
				group["delete"] = l.DeleteGroup(ctx, "t", bad)
				group["consumer"] = errOf(l.NewConsumer(api.ConsumerOptions{Topic: "t", Group: bad}))
				policy["create"] = l.CreateTopic(ctx, "u", api.TopicOptions{Policy: bad})
				policy["bind"] = l.BindPolicy(ctx, "t", bad)
			}
			policy["set"], policy["delete"], policy["forget"] = l.SetPolicy(ctx, bad, api.Policy{}), l.DeletePolicy(ctx, bad), l.ForgetPolicy(ctx, bad)
			user["grants"], user["tokens"] = errOf(l.Grants(ctx, bad)), errOf(l.Tokens(ctx, bad))
			user["put"], user["put again"] = l.PutUser(ctx, bad, "", api.UserOptions{}), l.PutUser(ctx, bad, "", api.UserOptions{Replace: true})
			user["delete"], user["quota"] = l.DeleteUser(ctx, bad), l.SetQuota(ctx, bad, api.Quota{Records: 1})
			user["grant"], user["revoke"] = l.Grant(ctx, bad, cp.Administrator), l.Revoke(ctx, bad, cp.Administrator)
			_, _, user["token"] = l.CreateToken(ctx, bad, api.TokenOptions{})
			for want, calls := range map[error]map[string]error{ErrInvalidTopicName: topic, ErrInvalidGroup: group, ErrInvalidUser: user, ErrInvalidPolicy: policy} {
				for call, err := range calls {
					if !errors.Is(err, want) || len(err.Error()) > 400 {
						t.Errorf("%s, %s of %.20q: %v, want %v", way, call, bad, err, want)
					}
				}
			}
		}
		is(t, errOf(l.DescribeGroup(ctx, "t", "none")), ErrNoSuchGroup)
		is(t, errOf(l.Groups(ctx, "none")), ErrNoSuchTopic)
		is(t, errOf(l.Grants(ctx, "nobody")), ErrNoSuchUser)
	}
	if users, err := e.Users(ctx); err != nil || len(users) != 0 {
		t.Errorf("users %v %v", users, err)
	}
}

// A client in another language that sends such names is told the same, by every request;
// and that there is no such topic or group, in place of that nobody is in it.
func TestNamesAreRefusedOnTheWire(t *testing.T) {
	e := open(t, t.TempDir(), Options{})
	newTopic(t, e, "t")
	nc, err := net.Dial("tcp", serve(t, e))
	must(t, err)
	defer nc.Close()
	var enc wire.Encoder
	ask := func(key wire.Key, m wire.Message) wire.Code {
		t.Helper()
		_, err := nc.Write(enc.Frame(key, 0, 1, m, 0))
		must(t, err)
		head := make([]byte, wire.HeadSize)
		if _, err = io.ReadFull(nc, head); err != nil {
			t.Fatalf("%s %+v: %v", key, m, err)
		}
		h, err := wire.ParseHead(head, wire.MaxFrame)
		must(t, err)
		body := make([]byte, h.Length)
		_, err = io.ReadFull(nc, body)
		must(t, err)
		_, err = wire.Reply(h.Key, h.Flags, body[:h.Message])
		if refused := (*wire.Error)(nil); errors.As(err, &refused) {
			return refused.Code
		}
		must(t, err)
		return 0
	}
	is0 := func(what any, got, want wire.Code) {
		t.Helper()
		if got != want {
			t.Errorf("%T %v: %v, want %v", what, what, got, want)
		}
	}
	is0("hello", ask(wire.KeyHello, &wire.Hello{Magic: wire.Magic, MinVersion: wire.Version, MaxVersion: wire.Version}), 0)
	type request struct {
		key wire.Key
		m   wire.Message
	}
	cursor := newConsumer(t, e, ConsumerOptions{Topic: "t"}).Cursor()
	ofTopic := func(topic, group string) []request {
		return []request{
			{wire.KeyDescribeTopic, &wire.DescribeTopic{Topic: topic}}, {wire.KeyRoute, &wire.Topic{Topic: topic}},
			{wire.KeyListGroups, &wire.ListGroups{Topic: topic}}, {wire.KeyListMembers, &wire.ListMembers{Topic: topic, Group: group}},
			{wire.KeyDescribeGroup, &wire.DescribeGroup{Topic: topic, Group: group}}, {wire.KeyDeleteGroup, &wire.Group{Topic: topic, Group: group}},
			{wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: topic, Group: group}}, {wire.KeyOpenProducer, &wire.OpenProducer{Topic: topic}},
			{wire.KeyJoinGroup, &wire.JoinGroup{Topic: topic, Group: group, Member: "m", Instance: 1}},
			{wire.KeyHeartbeat, &wire.Heartbeat{Topic: topic, Group: group, Member: "m"}},
			{wire.KeyLeaveGroup, &wire.LeaveGroup{Topic: topic, Group: group, Member: "m"}},
			{wire.KeyCommit, &wire.Commit{Topic: topic, Group: group, Cursor: cursor}},
			{wire.KeyCommit, &wire.Commit{Topic: topic, Group: group, Member: "m", Cursor: cursor}},
			{wire.KeyOpenConsumer, &wire.OpenConsumer{Topic: topic, Group: group, Member: "m", Ranges: []uint32{0}, From: byte(api.AtGroup)}},
		}
	}
	for _, bad := range []string{"a\x01b", strings.Repeat("n", 256)} {
		for _, r := range ofTopic(bad, "g") {
			is0(r.m, ask(r.key, r.m), wire.CodeInvalidName)
		}
		for i, r := range ofTopic("t", bad) {
			if i >= 3 && r.key != wire.KeyOpenProducer { // those that name a group
				is0(r.m, ask(r.key, r.m), wire.CodeInvalidGroup)
			}
		}
		is0("member", ask(wire.KeyJoinGroup, &wire.JoinGroup{Topic: "t", Group: "g", Member: bad, Instance: 1}), wire.CodeInvalidGroup)
		for _, r := range []request{
			{wire.KeyListGrants, &wire.ListGrants{User: bad}}, {wire.KeyListTokens, &wire.ListTokens{User: bad}}, {wire.KeyDeleteUser, &wire.DeleteUser{User: bad}},
			{wire.KeySetQuota, &wire.SetQuota{User: bad, Quota: &wire.Quota{}}}, {wire.KeyCreateToken, &wire.CreateToken{User: bad}},
		} {
			is0(r.m, ask(r.key, r.m), wire.CodeInvalidUser)
		}
	}
	for _, key := range []wire.Key{wire.KeyListMembers, wire.KeyDescribeGroup} {
		of := func(topic, group string) wire.Message {
			if key == wire.KeyListMembers {
				return &wire.ListMembers{Topic: topic, Group: group}
			}
			return &wire.DescribeGroup{Topic: topic, Group: group}
		}
		is0(fmt.Sprint(key, " of no topic"), ask(key, of("none", "g")), wire.CodeNoSuchTopic)
		is0(fmt.Sprint(key, " of no group"), ask(key, of("t", "none")), wire.CodeNoSuchGroup)
		is0(fmt.Sprint(key, " without a group"), ask(key, of("t", "")), wire.CodeNoSuchGroup)
		must(t, newConsumer(t, e, ConsumerOptions{Topic: "t", Group: "there"}).Commit(within(t)))
		is0(fmt.Sprint(key, " of a group without members"), ask(key, of("t", "there")), 0)
	}
}

// linkedLog and servedLog return interfaces where the engine and its client return types
// of their own.
type linkedLog struct{ *Engine }

func (l linkedLog) NewProducer(o api.ProducerOptions) (api.Producer, error) {
	return l.Engine.NewProducer(o)
}

func (l linkedLog) NewConsumer(o api.ConsumerOptions) (api.Consumer, error) {
	return l.Engine.NewConsumer(o)
}

type servedLog struct{ *client.Client }

func (l servedLog) NewProducer(o api.ProducerOptions) (api.Producer, error) {
	return l.Client.NewProducer(o)
}

func (l servedLog) NewConsumer(o api.ConsumerOptions) (api.Consumer, error) {
	return l.Client.NewConsumer(o)
}

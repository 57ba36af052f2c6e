package engine

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// However often clients log in or are refused, few lines of it are told of a user and kind,
// with how many were left out; what was changed is told each time.
func TestAuditIsBounded(t *testing.T) {
	ctx, e := t.Context(), open(t, t.TempDir(), Options{})
	g := newGate(t, e, AuthOptions{})
	firstUser(t, e)
	_, secret, err := e.CreateToken(ctx, "first", TokenOptions{})
	must(t, err)
	const many = 1000
	event := server.Event{User: "mallory", Remote: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, Request: wire.KeyDeleteTopic, About: "t"}
	refused, missing := event, event
	refused.Err, missing.User, missing.Err = wire.CodePermissionDenied, "admin", ErrNoSuchTopic
	for range many {
		g.want(0, "10.0.0.1", "token", "", secret)
		g.audit(refused)
		g.audit(missing)
		g.audit(event)
	}
	logins, refusals, failures := "what=login user=first", "what=DeleteTopic user=mallory", "what=DeleteTopic user=admin"
	count := func(what, outcome string) (n int) {
		for line := range strings.Lines(g.log.String()) {
			if strings.Contains(line, what) && !strings.Contains(line, "left_out") && strings.Contains(line, "outcome="+outcome) {
				n++
			}
		}
		return n
	}
	if n := count(refusals, "done"); n != many {
		t.Errorf("%d changes of %d were told", n, many)
	}
	for what, outcome := range map[string]string{logins: "done", refusals: "refused", failures: "failed"} {
		if n := count(what, outcome); n != auditMost {
			t.Errorf("%s: %d %s were told", what, n, outcome)
		}
		eventually(t, what+" that were left out are counted", func() bool {
			for line := range strings.Lines(g.log.String()) {
				if strings.Contains(line, what) && strings.Contains(line, "outcome="+outcome) && strings.Contains(line, fmt.Sprint("left_out=", many-auditMost)) {
					return true
				}
			}
			return false
		})
	}
	g.pass(auditEvery)
	g.audit(refused)
	g.want(0, "10.0.0.2", "token", "", secret) // another place is no part of that
	if n, m := count(refusals, "refused"), count(logins, "done"); n != auditMost+1 || m != auditMost+1 {
		t.Errorf("%d refusals and %d logins were told", n, m)
	}
}

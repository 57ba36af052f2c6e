package cp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/ringfence/cp"
)

func TestUsers(t *testing.T) {
	m := newMachine(t)
	for _, name := range []string{"", strings.Repeat("x", 256), "a\nb", "a\x7fb", "a\xffb"} {
		m.do(cp.PutUser{Name: name}, cp.ErrInvalidUser)
	}
	m.do(cp.PutUser{Name: "alice", Hash: make([]byte, cp.MaxHash+1)}, cp.ErrInvalidHash)
	m.do(cp.PutUser{Name: "alice", Grants: []cp.Grant{{}}}, cp.ErrInvalidGrant)
	m.do(cp.PutUser{Name: "alice", Replace: true}, cp.ErrNoSuchUser)
	hash := []byte("hash")
	m.do(cp.PutUser{Name: "alice", Hash: hash, Grants: []cp.Grant{cp.Administrator, cp.Administrator}, At: 5}, nil)
	hash[0] = 'x'
	m.do(cp.PutUser{Name: "alice"}, cp.ErrUserExists)
	before := m.Access()
	if u := before.User("alice"); string(u.Hash) != "hash" || u.Created != 5 || u.Changed != 5 || !slices.Equal(u.Grants, []cp.Grant{cp.Administrator}) {
		t.Fatalf("alice is %+v", u)
	}
	m.do(cp.PutUser{Name: "alice", Hash: []byte("new"), Replace: true, At: 9}, nil)
	if u := m.Access().User("alice"); string(u.Hash) != "new" || u.Created != 5 || u.Changed != 9 || len(u.Grants) != 1 {
		t.Fatalf("alice with another password is %+v", u)
	}
	if u := before.User("alice"); string(u.Hash) != "hash" {
		t.Fatalf("what was known before changed to %+v", u)
	}
	m.do(cp.PutUser{Name: "Bob"}, nil)
	var names []string
	for u := range m.Access().Users() {
		names = append(names, u.Name)
	}
	if !slices.Equal(names, []string{"Bob", "alice"}) {
		t.Fatalf("users are %q", names)
	}
	m.do(cp.SetQuota{User: "carol"}, cp.ErrNoSuchUser)
	m.do(cp.SetQuota{User: "alice", Quota: cp.Quota{Records: 1, Bytes: 2}}, nil)
	if q := m.Access().User("alice").Quota; q != (cp.Quota{Records: 1, Bytes: 2}) {
		t.Fatalf("quota is %+v", q)
	}
	m.do(cp.DeleteUser{Name: "alice"}, nil)
	m.do(cp.DeleteUser{Name: "alice"}, nil)
	if m.Access().User("alice") != nil || m.Access().Len() != 1 || before.Len() != 1 || before.User("alice") == nil {
		t.Fatal("a user is there who is not, or the other way round")
	}
}

func TestGrants(t *testing.T) {
	m := newMachine(t)
	orders := cp.Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "orders*"}
	m.do(cp.SetGrant{User: "alice", Grant: orders}, cp.ErrNoSuchUser)
	m.do(cp.PutUser{Name: "alice"}, nil)
	for _, g := range []cp.Grant{
		{}, {Kind: cp.OnTopic, Op: cp.Produce}, {Kind: cp.OnTopic, Op: cp.Users, Pattern: "x"}, {Kind: cp.OnGroup, Op: cp.Produce, Pattern: "x"},
		{Kind: cp.OnCluster, Op: cp.Users, Pattern: "x"}, {Kind: 4, Op: cp.Anything, Pattern: "*"}, {Kind: cp.OnTopic, Op: 9, Pattern: "*"},
		{Kind: cp.OnTopic, Op: cp.Consume, Pattern: strings.Repeat("x", 256)}, {Kind: cp.OnTopic, Op: cp.Consume, Pattern: "\x00"},
	} {
		m.do(cp.SetGrant{User: "alice", Grant: g}, cp.ErrInvalidGrant)
	}
	m.do(cp.SetGrant{User: "alice", Grant: orders}, nil)
	once := snapshot(t, m.State)
	m.do(cp.SetGrant{User: "alice", Grant: orders}, nil)
	if got := snapshot(t, m.State); string(got) != string(once) {
		t.Fatal("a grant given twice is not what it is once")
	}
	m.do(cp.SetGrant{User: "alice", Grant: orders, Revoke: true}, nil)
	m.do(cp.SetGrant{User: "alice", Grant: orders, Revoke: true}, nil)
	if g := m.Access().User("alice").Grants; len(g) != 0 {
		t.Fatalf("grants are %v", g)
	}
	for i := range cp.MaxGrants {
		m.do(cp.SetGrant{User: "alice", Grant: cp.Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: fmt.Sprint(i)}}, nil)
	}
	m.do(cp.SetGrant{User: "alice", Grant: orders}, cp.ErrLimit)
	m.do(cp.PutUser{Name: "alice", Replace: true, Grants: []cp.Grant{orders}}, cp.ErrLimit)
}

// Every rule of what a grant covers.
func TestAllows(t *testing.T) {
	for _, tt := range []struct {
		grant cp.Grant
		kind  cp.Kind
		op    cp.Operation
		name  string
		want  bool
	}{
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "a"}, cp.OnTopic, cp.Produce, "a", true},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "a"}, cp.OnTopic, cp.Produce, "ab", false},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "a"}, cp.OnTopic, cp.Consume, "a", false},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "a"}, cp.OnGroup, cp.Produce, "a", false},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Produce, Pattern: "a"}, cp.OnTopic, cp.Describe, "a", true},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Describe, Pattern: "a"}, cp.OnTopic, cp.Consume, "a", false},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "a*"}, cp.OnTopic, cp.Consume, "a", true},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "a*"}, cp.OnTopic, cp.Consume, "abc", true},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "a*"}, cp.OnTopic, cp.Consume, "b", false},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Consume, Pattern: "a*b"}, cp.OnTopic, cp.Consume, "axb", false},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Anything, Pattern: "*"}, cp.OnTopic, cp.Delete, "x", true},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Anything, Pattern: "*"}, cp.OnGroup, cp.Consume, "x", false},
		{cp.Grant{Kind: cp.OnTopic, Op: cp.Anything, Pattern: "*"}, cp.OnCluster, cp.Users, "", false},
		{cp.Grant{Kind: cp.OnGroup, Op: cp.Consume, Pattern: "g"}, cp.OnGroup, cp.Consume, "g", true},
		{cp.Grant{Kind: cp.OnCluster, Op: cp.Alter, Pattern: "*"}, cp.OnCluster, cp.Alter, "", true},
		{cp.Grant{Kind: cp.OnCluster, Op: cp.Users, Pattern: "*"}, cp.OnCluster, cp.Describe, "", false},
		{cp.Grant{Kind: cp.OnCluster, Op: cp.Users, Pattern: "*"}, cp.OnTopic, cp.Describe, "x", false},
		{cp.Administrator, cp.OnTopic, cp.Produce, "x", true},
		{cp.Administrator, cp.OnGroup, cp.Delete, "x", true},
		{cp.Administrator, cp.OnCluster, cp.Users, "", true},
	} {
		u := cp.User{Grants: []cp.Grant{tt.grant}}
		if got := u.Allows(tt.kind, tt.op, tt.name); got != tt.want {
			t.Errorf("%v: %v on %v %q: %v", tt.grant, tt.op, tt.kind, tt.name, got)
		}
		if (&cp.User{}).Allows(tt.kind, tt.op, tt.name) {
			t.Errorf("without a grant: %v on %v %q", tt.op, tt.kind, tt.name)
		}
	}
}

func TestTokens(t *testing.T) {
	m := newMachine(t)
	one := cp.Token{ID: cp.TokenID{1}, Sum: [32]byte{9}, Name: "ci", Expires: 10}
	m.do(cp.PutToken{User: "alice", Token: one}, cp.ErrNoSuchUser)
	m.do(cp.PutUser{Name: "alice"}, nil)
	m.do(cp.PutUser{Name: "bob"}, nil)
	for _, bad := range []cp.Token{{}, {ID: cp.TokenID{1}, Expires: -1}, {ID: cp.TokenID{1}, Name: "\n"}, {ID: cp.TokenID{1}, Name: strings.Repeat("x", 256)}} {
		m.do(cp.PutToken{User: "alice", Token: bad}, cp.ErrInvalidToken)
	}
	m.do(cp.PutToken{User: "alice", Token: one}, nil)
	m.do(cp.PutToken{User: "alice", Token: one}, nil) // a retry
	m.do(cp.PutToken{User: "bob", Token: one}, cp.ErrTokenExists)
	m.do(cp.PutToken{User: "alice", Token: cp.Token{ID: one.ID}}, cp.ErrTokenExists)
	if u, tok := m.Access().Token(one.ID); u.Name != "alice" || *tok != one {
		t.Fatalf("the token is %+v of %+v", tok, u)
	}
	if !one.Live(9) || one.Live(10) || !(&cp.Token{}).Live(1<<62) {
		t.Error("a token lives too long or too short")
	}
	m.do(cp.DeleteToken{ID: one.ID}, nil)
	m.do(cp.DeleteToken{ID: one.ID}, nil)
	if u, tok := m.Access().Token(one.ID); u != nil || tok != nil {
		t.Fatalf("a deleted token is %+v of %+v", tok, u)
	}
	m.do(cp.PutToken{User: "bob", Token: one}, nil)
	m.do(cp.DeleteUser{Name: "bob"}, nil)
	if u, _ := m.Access().Token(one.ID); u != nil {
		t.Fatalf("the token of a deleted user is %+v's", u)
	}
	for i := range cp.MaxTokens {
		m.do(cp.PutToken{User: "alice", Token: cp.Token{ID: cp.TokenID{1, byte(i), byte(i >> 8)}}}, nil)
	}
	m.do(cp.PutToken{User: "alice", Token: cp.Token{ID: cp.TokenID{2}}}, cp.ErrLimit)
}

// Every name of a kind and an operation is read back as what it names, and each kind
// lists its own.
func TestGrantNames(t *testing.T) {
	seen := 0
	for kind := range cp.Kind(5) {
		if k, ok := cp.KindOf(kind.String()); ok && k != kind {
			t.Errorf("kind %d is read as %d", kind, k)
		}
		for op := range cp.Operation(10) {
			o, ok := cp.OperationOf(op.String())
			if ok && o != op {
				t.Errorf("operation %d is read as %d", op, o)
			}
			pattern := "*"
			if valid := (cp.Grant{Kind: kind, Op: op, Pattern: pattern}).Valid(); valid != slices.Contains(kind.Operations(), op) {
				t.Errorf("%v on %v: valid %v", op, kind, valid)
			} else if valid {
				seen++
			}
		}
	}
	if seen != 7+4+4 {
		t.Errorf("%d grants", seen)
	}
}

package api

import (
	"testing"

	"github.com/ringfence/ringfence/cp"
)

// No name does anything to the terminal that a list of them is shown on.
func TestNamesHaveNoControlCharacters(t *testing.T) {
	for _, check := range []struct {
		what string
		err  func(name string) error
	}{
		{"topic", CheckTopic}, {"group", CheckGroup}, {"member", CheckMember}, {"policy", CheckPolicy}, {"user", CheckUser},
		{"token", CheckTokenName},
		{"grant", func(name string) error { return CheckGrants(Grant{Kind: cp.OnGroup, Op: cp.Consume, Pattern: name}) }},
	} {
		if err := check.err("plain-1"); err != nil {
			t.Errorf("%s: %v", check.what, err)
		}
		for _, bad := range []string{"a\n", "\x1b[2J", "a\x7f", "\u009b2J", "a\u0085b", "\xff"} {
			if check.err(bad) == nil {
				t.Errorf("%s %q was taken", check.what, bad)
			}
		}
	}
}

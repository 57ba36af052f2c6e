package api

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/ringfence/ringfence/cp"
)

// The names that callers give are looked at before anything is done with them: the
// metadata would refuse them too, but only what fits a command comes that far. It looks at
// the control characters of ASCII alone, and keeps doing so, or what it took before would
// be refused when it is read; those of Unicode are refused here.

// validName says whether somebody may give a name to something that is no topic.
func validName(name string) bool { return cp.ValidName(name) && printable(name) }

// printable says whether text does nothing to the terminal that shows it.
func printable(text string) bool { return !strings.ContainsFunc(text, unicode.IsControl) }

// CheckTopic refuses what cannot be a topic's name.
func CheckTopic(name string) error {
	if cp.ValidTopicName(name) {
		return nil
	}
	return &TopicError{Topic: Abridged(name), Range: -1, Err: InvalidName(ErrInvalidTopicName)}
}

// InvalidName adds what a topic's name may be.
func InvalidName(err error) error {
	return fmt.Errorf("%w: it has 1 to %d letters, digits, '.', '_' and '-', and is neither '.' nor '..'", err, cp.MaxName)
}

// CheckGroup refuses what cannot be a group's name; "" is no group.
func CheckGroup(name string) error {
	if name == "" || validName(name) {
		return nil
	}
	return Of("group", name, fmt.Errorf("%w: %s", cp.ErrInvalidGroup, whatNamesHave))
}

// CheckMember refuses what cannot be the name of a group's member.
func CheckMember(name string) error {
	if validName(name) {
		return nil
	}
	return Of("member", name, fmt.Errorf("%w: %s", cp.ErrInvalidGroup, whatNamesHave))
}

var whatNamesHave = fmt.Sprintf("a name has 1 to %d bytes of UTF-8 without control characters", cp.MaxName)

// CheckPolicy refuses what cannot be a policy's name.
func CheckPolicy(name string) error {
	if validName(name) {
		return nil
	}
	return Of("policy", name, fmt.Errorf("%w: %s", cp.ErrInvalidPolicy, whatNamesHave))
}

// Abridged is a name that is short enough for an error.
func Abridged(name string) string {
	const most = 64
	if len(name) <= most {
		return name
	}
	return fmt.Sprintf("%s... (%d bytes)", name[:most], len(name))
}

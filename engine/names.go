package engine

import (
	"fmt"
	"strings"

	"github.com/ringfence/ringfence/cp"
)

// The names that callers give are looked at before anything is done with them: the
// metadata would refuse them too, but only what fits a command comes that far.

// checkTopic refuses what cannot be a topic's name.
func checkTopic(name string) error {
	if cp.ValidTopicName(name) {
		return nil
	}
	return &TopicError{Topic: abridged(name), Range: -1, Err: invalidName(ErrInvalidTopicName)}
}

// invalidName adds what a topic's name may be.
func invalidName(err error) error {
	return fmt.Errorf("%w: it has 1 to %d letters, digits, '.', '_' and '-', and is neither '.' nor '..'", err, cp.MaxName)
}

// checkGroup refuses what cannot be a group's name; "" is no group.
func checkGroup(name string) error {
	if name == "" || cp.ValidName(name) {
		return nil
	}
	return fmt.Errorf("group %q: %w: it has 1 to %d bytes", abridged(name), cp.ErrInvalidGroup, cp.MaxName)
}

// checkPolicy refuses what cannot be a policy's name.
func checkPolicy(name string) error {
	if cp.ValidName(name) {
		return nil
	}
	return fmt.Errorf("policy %q: %w: its name has 1 to %d bytes", abridged(name), cp.ErrInvalidPolicy, cp.MaxName)
}

// abridged is a name that is short enough for an error.
func abridged(name string) string {
	const most = 64
	if len(name) <= most {
		return name
	}
	return fmt.Sprintf("%s... (%d bytes)", name[:most], len(name))
}

// listed is a list of names that is short enough for an error.
func listed(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
)

// SetPolicy defines a policy or replaces its definition, also for the topics that are bound to
// it. Error: ErrInvalidPolicy.
func (e *Engine) SetPolicy(ctx context.Context, name string, p Policy) error {
	if err := api.CheckPolicy(name); err != nil {
		return err
	}
	if err := p.Validate(); err != nil {
		return api.Of("policy", name, err)
	}
	return e.change(ctx, cp.DefinePolicy{Name: name, Policy: p})
}

// DeletePolicy removes a definition. While topics are bound to it that is refused with an
// ErrPolicyInUse that names them; see [Engine.ForgetPolicy]. Bindings and definitions lie in
// different shards of the metadata, so a topic that is bound at the same moment may be
// overlooked; it is then like one whose policy was removed by ForgetPolicy.
func (e *Engine) DeletePolicy(ctx context.Context, name string) error {
	if err := api.CheckPolicy(name); err != nil {
		return err // "" is what a topic is bound to that has no policy
	}
	bound, err := e.boundTo(name)
	switch {
	case err != nil:
		return api.Of("policy", name, fmt.Errorf("which topics are bound to it is not known: %w", err))
	case len(bound) > 0:
		return api.Of("policy", name, fmt.Errorf("%w: bound to it: %s", ErrPolicyInUse, listed(bound)))
	}
	return e.ForgetPolicy(ctx, name)
}

// ForgetPolicy removes a definition even while topics are bound to it. They stay bound to its
// name, and nothing of them expires until it is defined again or they are bound to another
// policy.
func (e *Engine) ForgetPolicy(ctx context.Context, name string) error {
	if err := e.definedPolicy(ctx, name); err != nil {
		return err
	}
	return e.change(ctx, cp.DeletePolicy{Name: name})
}

// boundTo lists the topics that are bound to a policy.
func (e *Engine) boundTo(policy string) (names []string, err error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	defer e.end()
	topics, err := e.topics()
	for _, t := range topics {
		if t.Policy == policy {
			names = append(names, t.Name)
		}
	}
	return names, err
}

// Policies returns the definitions by name.
func (e *Engine) Policies(ctx context.Context) (map[string]Policy, error) {
	if err := e.enter(ctx); err != nil {
		return nil, err
	}
	defer e.end()
	list := map[string]Policy{}
	err := e.host.ReadLocal(e.home(), func(s *cp.State) {
		for name, p := range s.Policies() {
			list[name] = p
		}
	})
	return list, err
}

// BindPolicy binds a topic to a policy by name; "" unbinds it. Errors: ErrNoSuchTopic,
// ErrNoSuchPolicy.
func (e *Engine) BindPolicy(ctx context.Context, topic, policy string) error {
	if err := api.CheckTopic(topic); err != nil {
		return err
	}
	if err := e.mayBind(ctx, topic, policy); err != nil {
		return err
	}
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.end()
	defer e.retainSoon()
	return about(topic, -1, e.front.BindTopicPolicy(topic, policy))
}

// mayBind refuses to bind a topic to a policy that is not defined.
func (e *Engine) mayBind(ctx context.Context, topic, policy string) error {
	if policy == "" {
		return nil
	}
	return about(topic, -1, e.definedPolicy(ctx, policy))
}

// definedPolicy refuses the name of a policy that is not defined.
func (e *Engine) definedPolicy(ctx context.Context, name string) error {
	if err := api.CheckPolicy(name); err != nil {
		return err
	}
	list, err := e.Policies(ctx)
	if err != nil {
		return err
	}
	if _, ok := list[name]; !ok {
		return api.Of("policy", name, fmt.Errorf("%w: define it first", ErrNoSuchPolicy))
	}
	return nil
}

// change proposes a command about no topic and lets the frontend know.
func (e *Engine) change(ctx context.Context, cmd cp.Command) error {
	if err := e.enter(ctx); err != nil {
		return err
	}
	defer e.end()
	if reply := e.command("", cmd); reply.Err != nil {
		return fromHost(reply.Err)
	}
	e.front.ApplyCommitted(cmd)
	e.retainSoon()
	return nil
}

// listed is a list of names that is short enough for an error.
func listed(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

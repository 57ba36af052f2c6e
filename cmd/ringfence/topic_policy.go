package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

func (a *app) topicPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Retention and roll rules that topics are bound to by name",
	}
	cmd.AddCommand(a.policySetCommand(), a.policyLsCommand(), a.policyDeleteCommand(), a.policyBindCommand())
	return cmd
}

func (a *app) policySetCommand() *cobra.Command {
	var age, segAge, size, segSize boundFlag
	var yes bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Define a policy, or replace its definition",
		Long: `Define a policy, or replace its definition. What is not given inherits: nothing expires,
and an open segment rolls at the --segment-size of 'ringfence serve' or after 7 days,
unless the program that links the engine says otherwise. "off" turns a rule off whatever
is inherited.

Policies are applied when one is set or bound, when a process opens its first producer,
and then every minute. Retention removes closed segments, whole, the oldest of a range
first: those closed longer ago than --max-age, and as many as bring what is closed down to
--max-bytes, which is all of it where the newest alone is larger. 0 keeps nothing that is
closed; "off" is no limit. The open segment stays,
and is closed at --segment-max-bytes or --segment-max-age, or when its process ends. A
limit that would remove something at once is asked about.`,
		Example: `  ringfence topic policy set week --max-age 7d --max-bytes 10GiB
  ringfence topic policy bind logs week`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p := engine.Policy{MaxAge: age.bound, MaxBytes: size.bound, SegmentMaxAge: segAge.bound, SegmentMaxBytes: segSize.bound}
			return a.withLog(cmd.Context(), true, func(ctx context.Context, l api.Log) error {
				if err := a.confirmPolicy(ctx, l, yes, p, "", args[0]); err != nil {
					return err
				}
				if err := applied(ctx, l, l.SetPolicy(ctx, args[0], p)); err != nil {
					return err
				}
				return a.report(policyJSON(args[0], p), func() { a.printPolicies(map[string]engine.Policy{args[0]: p}) })
			})
		},
	}
	age.isAge, segAge.isAge = true, true
	cmd.Flags().Var(&age, "max-age", "keep a segment this long after it was sealed (7d, 36h, off)")
	cmd.Flags().Var(&size, "max-bytes", "keep at most this much of each range (10GiB, off)")
	cmd.Flags().Var(&segAge, "segment-max-age", "roll an open segment after this long (at least 1m, off)")
	cmd.Flags().Var(&segSize, "segment-max-bytes", "roll an open segment at this size (at least 1MiB, off)")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// applied looks at retention after a change of policies, where this process is the one that
// does and is about to end.
func applied(ctx context.Context, l api.Log, err error) error {
	if e, linked := l.(linkedLog); linked && err == nil {
		if _, err := e.Retain(ctx); err != nil {
			return fmt.Errorf("the policy is stored, and could not be applied yet: %w", err)
		}
	}
	return err
}

func (a *app) policyLsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the policies",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				list, err := l.Policies(ctx)
				if err != nil {
					return err
				}
				out := []policyReport{}
				for _, name := range slices.Sorted(maps.Keys(list)) {
					out = append(out, policyJSON(name, list[name]))
				}
				return a.report(out, func() { a.printPolicies(list) })
			})
		},
	}
}

func (a *app) policyDeleteCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "delete NAME",
		Short: "Forget a policy",
		Long: `Forget a policy's definition. While topics are bound to it that is refused; with
--force they stay bound to the name, and nothing of them expires until it is defined
again or they are bound elsewhere.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				list, err := l.Policies(ctx)
				if err != nil {
					return err
				}
				remove := l.DeletePolicy
				if force {
					remove = l.ForgetPolicy
				}
				switch err := remove(ctx, args[0]); {
				case errors.Is(err, engine.ErrPolicyInUse):
					return fmt.Errorf("%w; bind them elsewhere with 'ringfence topic policy bind', or give --force: nothing of them expires then", err)
				case err != nil:
					return err
				}
				return a.report(policyJSON(args[0], list[args[0]]), func() { a.printf("deleted policy %s\n", args[0]) })
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also while topics are bound to it")
	return cmd
}

func (a *app) policyBindCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "bind TOPIC [NAME]",
		Short: "Bind a topic to a policy; without a name, to none",
		Long: `Bind a topic to a policy; without a name, to none. The policy is applied at once: what
it would remove is asked about. 'ringfence topic policy set --help' says what that is.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			return a.withLog(cmd.Context(), false, func(ctx context.Context, l api.Log) error {
				if err := a.confirmBinding(ctx, l, yes, args[0], name); err != nil {
					return err
				}
				if err := applied(ctx, l, l.BindPolicy(ctx, args[0], name)); err != nil {
					return err
				}
				return a.report(map[string]string{"topic": args[0], "policy": name}, func() {
					if name == "" {
						a.printf("topic %s is bound to no policy\n", args[0])
					} else {
						a.printf("topic %s is bound to policy %s\n", args[0], name)
					}
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// boundFlag is one limit of a policy: an age or a size, "off" or "inherit".
type boundFlag struct {
	bound engine.Bound
	isAge bool
	text  string
}

func (b *boundFlag) Set(text string) (err error) {
	switch text {
	case "inherit":
		b.bound = engine.Bound{}
	case "off":
		b.bound = engine.Unlimited()
	default:
		var n int64
		if b.isAge {
			var age ageFlag
			err = age.Set(text)
			if n = time.Duration(age).Milliseconds(); err == nil && n == 0 && age > 0 { // not a budget of nothing
				err = fmt.Errorf("age %q: want a millisecond or more", text)
			}
		} else {
			n, err = parseSize(text)
		}
		b.bound = engine.Limit(n)
	}
	if err != nil {
		return fmt.Errorf(`%w; or "off", or "inherit"`, err)
	}
	b.text = text
	return nil
}

func (b *boundFlag) String() string { return b.text }

func (b *boundFlag) Type() string {
	if b.isAge {
		return "age"
	}
	return "size"
}

// policyReport is a policy with --json: a number of milliseconds or bytes, "off" or "inherit".
type policyReport struct {
	Name            string `json:"name"`
	MaxAge          any    `json:"max_age_ms"`
	MaxBytes        any    `json:"max_bytes"`
	SegmentMaxAge   any    `json:"segment_max_age_ms"`
	SegmentMaxBytes any    `json:"segment_max_bytes"`
}

func policyJSON(name string, p engine.Policy) policyReport {
	return policyReport{name, boundJSON(p.MaxAge), boundJSON(p.MaxBytes), boundJSON(p.SegmentMaxAge), boundJSON(p.SegmentMaxBytes)}
}

func boundJSON(b engine.Bound) any {
	if n, ok := b.Get(); ok {
		return n
	}
	return b.String()
}

func (a *app) printPolicies(list map[string]engine.Policy) {
	if len(list) == 0 {
		a.printf("no policies\n")
		return
	}
	rows := [][]string{{"POLICY", "MAX AGE", "MAX BYTES", "SEGMENT MAX AGE", "SEGMENT MAX BYTES"}}
	for _, name := range slices.Sorted(maps.Keys(list)) {
		p := list[name]
		rows = append(rows, []string{name, ageText(p.MaxAge), sizeText(p.MaxBytes), ageText(p.SegmentMaxAge), sizeText(p.SegmentMaxBytes)})
	}
	a.table(rows...)
}

func ageText(b engine.Bound) string {
	if n, ok := b.Get(); ok {
		age := ageFlag(time.Duration(n) * time.Millisecond)
		switch {
		case n == 0:
			return "0s"
		case n > cp.MaxPolicyAge: // of an earlier version
			return fmt.Sprintf("%dd", n/(24*3600_000))
		}
		return age.String()
	}
	return b.String()
}

func sizeText(b engine.Bound) string {
	if n, ok := b.Get(); ok {
		return bytesText(n)
	}
	return b.String()
}

package main

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
)

// completeTime bounds what a shell waits for names that a server has to tell, and
// completeMost how many there are.
const (
	completeTime = time.Second
	completeMost = 1000
)

// completions has a shell complete arguments by what a command's usage calls them, and
// flags by their values. A data directory is not opened for that: it would be kept from
// whoever starts to work on it meanwhile.
func (a *app) completions(cmd *cobra.Command) {
	words := strings.Fields(cmd.Use)[1:]
	if cmd.Runnable() && !cmd.HasSubCommands() && !slices.Contains(words, "FILE") && !slices.Contains(words, "FILE...") {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(words) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.complete(cmd, strings.Trim(words[len(args)], "[]"), args), cobra.ShellCompDirectiveNoFileComp
		}
	}
	for flag, values := range map[string][]string{
		"format": {"value", "json", "raw"}, "compress": {"none", "s2", "zstd"}, ioSetting: {"auto", "io_uring", "pool"},
	} {
		if cmd.LocalFlags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // it is there
		}
	}
	if !cmd.HasParent() {
		_ = cmd.RegisterFlagCompletionFunc("context", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return a.contextNames(), cobra.ShellCompDirectiveNoFileComp
		})
	}
	for _, sub := range cmd.Commands() {
		a.completions(sub)
	}
}

// complete lists what an argument may be; what cannot be found out is nothing.
func (a *app) complete(cmd *cobra.Command, what string, args []string) []string {
	noun := cmd.Parent().Name()
	if what == "NAME" && cmd.Name() != "add" {
		what = map[string]string{"user": "USER", "context": "CONTEXT"}[noun]
	}
	switch {
	case what == "CONTEXT":
		return a.contextNames()
	case what == "OPERATION":
		var names []string
		for _, kind := range []cp.Kind{cp.OnTopic, cp.OnGroup, cp.OnCluster} {
			for _, op := range kind.Operations() {
				names = append(names, op.String())
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	case what == "KIND":
		return []string{cp.OnTopic.String(), cp.OnGroup.String(), cp.OnCluster.String()}
	case what == "TOPIC" && (noun != "topic" || cmd.Name() != "create"):
		return a.names(cmd, func(ctx context.Context, l api.Log, found func(string) bool) {
			for t, err := range l.AllTopics(ctx) {
				if err != nil || !found(t.Name) {
					return
				}
			}
		})
	case what == "GROUP" && len(args) > 0:
		return a.names(cmd, func(ctx context.Context, l api.Log, found func(string) bool) {
			for g, err := range l.AllGroups(ctx, args[0]) {
				if err != nil || !found(g) {
					return
				}
			}
		})
	case what == "USER":
		return a.names(cmd, func(ctx context.Context, l api.Log, found func(string) bool) {
			for u, err := range l.AllUsers(ctx) {
				if err != nil || !found(u.Name) {
					return
				}
			}
		})
	}
	return nil
}

// names asks the server, if the command is about one, and is quiet about what fails.
func (a *app) names(cmd *cobra.Command, list func(ctx context.Context, l api.Log, found func(string) bool)) (names []string) {
	ctx, stop := context.WithTimeout(cmd.Context(), completeTime)
	defer stop()
	a.err = io.Discard
	if a.takeCommon(cmd) != nil {
		return nil
	}
	a.client.timeout = completeTime
	if addr, err := a.serverAddress(); err != nil || addr == "" {
		return nil
	}
	_ = a.withLog(ctx, false, func(ctx context.Context, l api.Log) error {
		list(ctx, l, func(name string) bool {
			names = append(names, name)
			return len(names) < completeMost
		})
		return nil
	})
	return names
}

func (a *app) contextNames() (names []string) {
	f, err := a.readContexts()
	if err != nil {
		return nil
	}
	for name := range f.Contexts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	words, _ := argumentsOf(cmd)
	if cmd.Runnable() && !cmd.HasSubCommands() && !slices.Contains(words, "FILE") && !slices.Contains(words, "FILE...") {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(words) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.complete(cmd, strings.Trim(words[len(args)], "[]"), args), cobra.ShellCompDirectiveNoFileComp
		}
	}
	own := cmd.LocalNonPersistentFlags()
	if !cmd.HasParent() {
		own = cmd.PersistentFlags()
	}
	own.VisitAll(func(f *pflag.Flag) {
		values := a.flagValues(f)
		if values == nil {
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return values(cmd, args), cobra.ShellCompDirectiveNoFileComp
		}) // it is there
	})
	for _, sub := range cmd.Commands() {
		a.completions(sub)
	}
}

// flagValues lists what may stand behind a flag; nil leaves it to the shell, which knows files.
func (a *app) flagValues(f *pflag.Flag) func(cmd *cobra.Command, args []string) []string {
	fixed := func(values ...string) func(*cobra.Command, []string) []string {
		return func(*cobra.Command, []string) []string { return values }
	}
	switch f.Name {
	case ioSetting:
		return fixed("auto", "io_uring", "pool")
	case "compress":
		return fixed("none", "s2", "zstd")
	case "context":
		return func(*cobra.Command, []string) []string { return a.contextNames() }
	case "format":
		return fixed("value", "json", "raw")
	case "from", "to":
		return fixed("start", "end")
	case "group", "policy", "user":
		what := strings.ToUpper(f.Name)
		return func(cmd *cobra.Command, args []string) []string { return a.complete(cmd, what, args) }
	case "log-format":
		return fixed("text", "json")
	case "log-level":
		return fixed("debug", "info", "warn", "error")
	}
	switch name := valueName(f); name {
	case "", "DIR", "FILE", "SOCKET": // or nothing
		return nil
	}
	return fixed()
}

// complete lists what an argument may be; what cannot be found out is nothing.
func (a *app) complete(cmd *cobra.Command, what string, args []string) []string {
	noun := cmd.Parent().Name()
	if what == "NAME" && cmd.Name() != "add" {
		what = map[string]string{"user": "USER", "context": "CONTEXT", "policy": "POLICY"}[noun]
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
	case what == "POLICY":
		return a.names(cmd, func(ctx context.Context, l api.Log, found func(string) bool) {
			list, _ := l.Policies(ctx)
			for _, name := range slices.Sorted(maps.Keys(list)) {
				if !found(name) {
					return
				}
			}
		})
	case what == "RANGE" && len(args) > 0:
		return a.names(cmd, func(ctx context.Context, l api.Log, found func(string) bool) {
			d, _ := l.Describe(ctx, args[0])
			for _, r := range d.AllRanges {
				if seq := fmt.Sprint(r.Seq); r.Active && !slices.Contains(args[1:], seq) && !found(seq) {
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

// aboutCompletion explains the command in our words, for the shells of Linux. The command
// and its scripts are of package cobra.
func aboutCompletion(cmd *cobra.Command) {
	cmd.GroupID = "host"
	cmd.Short = "Print the script that makes a shell complete commands, flags and names"
	cmd.Long = `Print the script that makes a shell complete commands, flags and their values, contexts
and, from a server, the names of topics, groups, policies and users. A data directory is not
opened for that.`
	cmd.Example = `  source <(ringfence completion bash)                               # this shell; takes the package bash-completion
  ringfence completion bash > /etc/bash_completion.d/ringfence      # every new one
  ringfence completion zsh > "${fpath[1]}/_ringfence"
  ringfence completion fish > ~/.config/fish/completions/ringfence.fish`
	for _, sub := range cmd.Commands() {
		if sub.Name() == "powershell" {
			cmd.RemoveCommand(sub)
			continue
		}
		sub.Short = "Print the script for " + sub.Name()
		sub.Long, sub.Example = "", ""
	}
}

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// The commands of the program, in the groups and the order of the help.
var commandGroups = []cobra.Group{
	{ID: "topics", Title: "Topics and their records:"},
	{ID: "server", Title: "A server, and who may use it:"},
	{ID: "host", Title: "This host, its directories and files:"},
}

func (a *app) subcommands() map[string][]*cobra.Command {
	return map[string][]*cobra.Command{
		"topics": {a.topicCommand(), a.produceCommand(), a.consumeCommand(), a.groupCommand(), a.cursorCommand()},
		"server": {ofThisHost(a.serveCommand()), a.userCommand(), a.aclCommand(), a.quotaCommand(), a.contextCommand(), a.shmCommand()},
		"host":   {ofThisHost(a.demoCommand()), ofThisHost(a.doctorCommand()), ofThisHost(a.segmentCommand()), ofThisHost(a.benchCommand()), a.versionCommand()},
		"":       {a.demoChildCommand(), a.benchChildCommand(), a.benchServeCommand()}, // hidden: what demo and bench start and kill
	}
}

// otherNames are what people who know other programs call the same.
var otherNames = map[string]string{"ls": "list", "list": "ls", "describe": "show", "delete": "rm"}

// usage prints what follows the text of a command's help: short, since the flags that all
// commands have are explained once.
func usage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:\n  ")
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "%s COMMAND\n", cmd.CommandPath())
	} else {
		fmt.Fprintf(&b, "%s\n", cmd.UseLine())
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAlso called: %s\n", strings.Join(cmd.Aliases, ", "))
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	for _, g := range cmd.Groups() {
		listCommands(&b, cmd, g.Title, func(sub *cobra.Command) bool { return sub.GroupID == g.ID && sub.IsAvailableCommand() })
	}
	listCommands(&b, cmd, "Commands:", func(sub *cobra.Command) bool {
		return !cmd.ContainsGroup(sub.GroupID) && sub.IsAvailableCommand() && sub.Name() != "help"
	})
	if !cmd.HasParent() {
		listCommands(&b, cmd, "Explained by 'ringfence help NAME':", (*cobra.Command).IsAdditionalHelpTopicCommand)
	} else {
		if h := cmd.Flags().Lookup("help"); h != nil {
			h.Hidden = true // who reads this has found it
			defer func() { h.Hidden = false }()
		}
		if f := cmd.LocalFlags().FlagUsages(); f != "" {
			fmt.Fprintf(&b, "\nFlags:\n%s", f)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", commonFlagsText(cmd))
	_, err := io.WriteString(cmd.OutOrStderr(), b.String())
	return err
}

func listCommands(b *strings.Builder, cmd *cobra.Command, title string, which func(*cobra.Command) bool) {
	for _, sub := range cmd.Commands() {
		if !which(sub) {
			continue
		}
		if title != "" {
			fmt.Fprintf(b, "\n%s\n", title)
			title = ""
		}
		fmt.Fprintf(b, "  %-*s  %s\n", sub.NamePadding(), sub.Name(), sub.Short)
	}
}

// commonFlagsText says which of the flags that all commands have are of use to this one.
func commonFlagsText(cmd *cobra.Command) string {
	for c := cmd; c != nil; c = c.Parent() {
		_, local := c.Annotations[thisHost]
		switch {
		case local:
			return "Every command of this host takes --data-dir, --io and --json, too; see 'ringfence help connection'."
		case c.Name() == "version", c.Name() == "cursor", c.Name() == "shm":
			return "Every command takes --json, too."
		}
	}
	return "--data-dir DIR, --server ADDRESS or --context NAME say where the topics are, --user who asks;\n" +
		"--json reports as JSON. 'ringfence help connection' has all of these, and their variables."
}

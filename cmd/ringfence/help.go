package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
		if f := flagsText(cmd); f != "" {
			fmt.Fprintf(&b, "\nFlags:\n%s", f)
		}
	}
	if text := commonFlagsText(cmd); text != "" {
		fmt.Fprintf(&b, "\n%s\n", flow(text))
	}
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
			return "Commands of this host take --data-dir, --io and --json: 'ringfence help connection'."
		case c.Name() == "version", c.Name() == "cursor", c.Name() == "shm":
			return "Every command takes --json, too."
		case c.Name() == "completion":
			return ""
		}
	}
	return "Where the topics are: --data-dir DIR, --server ADDRESS or --context NAME; who asks: --user. " +
		"--json reports as JSON. 'ringfence help connection' has all such flags."
}

// Widths of help, in characters.
const (
	textWidth  = 88
	flagsWidth = 100
)

// flow fills the lines of a text's paragraphs, so that nobody has to who changes a word. Of
// a paragraph with a line that is indented, a table or an example, nothing is moved.
func flow(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		if !strings.HasPrefix(p, " ") && !strings.Contains(p, "\n ") {
			paragraphs[i] = hanging("", p)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// commandLine is a command in a text, which is not broken.
var commandLine = regexp.MustCompile(`'ringfence [^'\n]*'`)

// hanging is a text in lines of the width of help, of which those behind the first begin as
// far in as its head is long.
func hanging(head, text string) string {
	const kept = "\x00" // a space in a command
	text = commandLine.ReplaceAllStringFunc(strings.Join(strings.Fields(text), " "), func(s string) string { return strings.ReplaceAll(s, " ", kept) })
	var b strings.Builder
	b.WriteString(head)
	at := len(head)
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case at+1+len(word) > textWidth:
			b.WriteString("\n" + strings.Repeat(" ", len(head)))
			at = len(head)
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += len(word)
	}
	return strings.ReplaceAll(b.String(), kept, " ")
}

// valueNames say what stands behind a flag, by its name or by its type.
var valueNames = map[string]string{
	"admin": "HOST:PORT", "admin-password-file": "FILE", "client-cert": "FILE", "client-key": "FILE", "compress": "CODEC", "config": "FILE",
	"context": "NAME", "data-dir": "DIR", "dir": "DIR", "file": "FILE",
	"format": "FORMAT", "from": "PLACE", "group": "GROUP", "header": "NAME=VALUE", "key-regexp": "REGEXP", "listen": "HOST:PORT",
	"io": "HOW", "log-format": "FORMAT", "log-level": "LEVEL", "member": "NAME", "name": "NAME", "new-password-file": "FILE",
	"password-file": "FILE", "policy": "POLICY", "server": "ADDRESS", "server-ca": "FILE", "user": "USER",
	"rows": "ROW,...", "shm": "SOCKET", "socket": "SOCKET", "tls-cert": "FILE", "tls-client-ca": "FILE", "tls-key": "FILE", "to": "PLACE",

	"age": "AGE", "duration": "TIME", "float64": "N", "int": "N", "int64": "N", "size": "SIZE", "uint": "N", "uint64": "N", "uint8": "N",
	"uintSlice": "N,...",
}

// valueName is what stands behind a flag, "" for nothing.
func valueName(f *pflag.Flag) string {
	if f.Value.Type() == "bool" {
		return ""
	}
	return cmp.Or(valueNames[f.Name], valueNames[f.Value.Type()])
}

// named is a flag's value with that in place of its type.
type named struct {
	pflag.Value
	name string
}

func (n named) Type() string { return n.name }

// flagsText lists the flags of a command.
func flagsText(cmd *cobra.Command) string {
	local := cmd.LocalFlags()
	list := pflag.NewFlagSet("", pflag.ContinueOnError)
	list.SortFlags = local.SortFlags
	local.VisitAll(func(f *pflag.Flag) {
		shown := *f
		if name := valueName(f); name != "" {
			shown.Value = named{f.Value, name}
		}
		switch {
		case f.DefValue == "0s": // which stands for nothing, as 0 does
			shown.DefValue = ""
		case f.Value.Type() == "duration":
			shown.DefValue = strings.Replace(f.DefValue, "m0s", "m", 1)
		}
		list.AddFlag(&shown)
	})
	return list.FlagUsagesWrapped(flagsWidth)
}

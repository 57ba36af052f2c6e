package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// app is what the subcommands share: where they read and write, and the flags
// that every one of them has. One app runs one command.
type app struct {
	in       io.Reader
	out, err io.Writer
	env      func(string) (string, bool)
	environ  func() []string

	dataDir       string
	dataDirSource string // where it is from, "" for the command line
	engine        string // --io
	json          bool
	client        clientFlags

	local    bool     // the command is about this host, and reaches no server
	somebody bool     // logged in to a server, which may not show everything
	files    []string // that settings name, and that may be in a data directory that is begun
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	return (&app{in: in, out: out, err: errw, env: os.LookupEnv, environ: os.Environ}).run(ctx, args)
}

func (a *app) run(ctx context.Context, args []string) int {
	out := &heard{w: a.out}
	a.out = out
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if keep := (told{}); err != nil && ctx.Err() != nil && !errors.As(err, &keep) {
		err = errInterrupted
	}
	if lost := out.failed(); err == nil && lost != nil {
		err = fmt.Errorf("standard output: %w", lost)
	}
	code, said := exitCode(err), ""
	if err != nil {
		said = withinWords.ReplaceAllString(err.Error(), "$1")
	}
	switch {
	case err == nil || isSilent(err):
	case a.json || asksForJSON(args):
		enc := json.NewEncoder(a.err)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(errorReport{said, code}) // there is nobody left to tell
	default:
		fmt.Fprintf(a.err, "ringfence: %s\n", said)
	}
	return code
}

// withinWords are the packages that errors are from, of which a program's user knows nothing.
var withinWords = regexp.MustCompile(`(^|: |; |\n)(?:(?:bench|client|cp|disk|engine|fence|frontend|ring|segfile|shm|store|wire): )+`)

// errorReport is why a command failed, with --json: the last line of standard error.
type errorReport struct {
	Error string `json:"error"`
	Code  int    `json:"code"` // the exit code
}

// asksForJSON says whether --json is among the arguments, for a command line with a
// mistake before it.
func asksForJSON(args []string) bool {
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "ringfence",
		Short: "Durable topics in a directory",
		Long: `Ringfence keeps named topics of key/value records in append-only segment files.

Commands work on the data directory given with --data-dir or RINGFENCE_DATA_DIR,
which only one process may have open at a time. 'ringfence serve' opens one for many;
with --server or RINGFENCE_SERVER, which wins over RINGFENCE_DATA_DIR, they reach its
topics. Start with 'ringfence demo',
which needs nothing, or with 'ringfence topic create' and 'ringfence produce'.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	a.addCommonFlags(root.PersistentFlags())
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return a.takeCommon(cmd) }
	root.SetUsageFunc(usage)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nSee '%s --help'", flagError(err), cmd.CommandPath())}
	})
	root.Version = thisVersion().String()
	root.SetVersionTemplate("{{.Version}}\n")
	cobra.EnableCommandSorting = false // they stand in an order that makes sense
	all := a.subcommands()
	for i := range commandGroups {
		g := &commandGroups[i]
		root.AddGroup(g)
		for _, cmd := range all[g.ID] {
			cmd.GroupID = g.ID
			root.AddCommand(cmd)
		}
	}
	root.AddCommand(all[""]...)
	root.AddCommand(a.connectionTopic(root.PersistentFlags()), exitCodesTopic())
	checkArguments(root)
	a.completions(root)
	root.SetOut(a.out) // which completion looks at when it is made
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = helpTopic
			checkArguments(cmd)
		case "completion":
			aboutCompletion(cmd)
			checkArguments(cmd)
		}
	}
	return root
}

// helpTopic takes the words of a command, or of what else is explained.
func helpTopic(cmd *cobra.Command, args []string) error {
	found, rest, err := cmd.Root().Find(args)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("there is no help about %q%s", strings.Join(args, " "), meantCommand(found, rest[0]))
	}
	if err != nil {
		return usageError{err}
	}
	return nil
}

// meantCommand is what somebody may have meant who gave a command that there is not.
func meantCommand(cmd *cobra.Command, word string) string {
	cmd.SuggestionsMinimumDistance = 2
	see := fmt.Sprintf("see '%s --help'", cmd.CommandPath())
	if like := cmd.SuggestionsFor(word); len(like) > 0 {
		return fmt.Sprintf("; is it %s? Else %s", strings.Join(like, ", or "), see)
	}
	return "; " + see
}

// argumentsOf are the words that stand for arguments in a command's usage, and how many of
// them there have to be.
func argumentsOf(cmd *cobra.Command) (words []string, least int) {
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if word[0] == '-' {
			break
		}
		if words = append(words, word); word[0] != '[' {
			least++
		}
	}
	return words, least
}

// checkCount says which argument is missing, or which one too many.
func checkCount(cmd *cobra.Command, args []string) error {
	words, least := argumentsOf(cmd)
	switch {
	case len(args) < least && least-len(args) == 1:
		return fmt.Errorf("%s is missing", words[len(args)])
	case len(args) < least:
		return fmt.Errorf("%s are missing", strings.Join(words[len(args):least], " and "))
	case len(args) > len(words) && (len(words) == 0 || !strings.Contains(words[len(words)-1], "...")):
		return fmt.Errorf("%q is one argument too many", args[len(words)])
	}
	return nil
}

// checkArguments makes wrong arguments and unknown subcommands usage errors, and gives
// commands the other names that they are looked for under.
func checkArguments(cmd *cobra.Command) {
	if other, ok := otherNames[cmd.Name()]; ok {
		cmd.Aliases = append(cmd.Aliases, other)
	}
	if cmd.Name() != "help" && !cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := checkCount(cmd, args); err != nil {
				return usageError{fmt.Errorf("%w\nUsage: %s", err, cmd.UseLine())}
			}
			return nil
		}
	} else if cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q%s", args[0], meantCommand(cmd, args[0]))}
			}
			return nil
		}
	}
	cmd.Long = flow(cmd.Long)
	if cmd.HasSubCommands() && !cmd.Runnable() { // which would print its help whatever the arguments are
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	for _, sub := range cmd.Commands() {
		checkArguments(sub)
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

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
	context       string // --context
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	a := &app{in: in, out: out, err: errw, env: os.LookupEnv, environ: os.Environ}
	root := a.rootCommand()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errw)
	err := root.ExecuteContext(ctx)
	if keep := (told{}); err != nil && ctx.Err() != nil && !errors.As(err, &keep) {
		err = errInterrupted
	}
	code := exitCode(err)
	switch {
	case err == nil || isSilent(err):
	case a.json || asksForJSON(args):
		enc := json.NewEncoder(errw)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(errorReport{err.Error(), code}) // there is nobody left to tell
	default:
		fmt.Fprintf(errw, "ringfence: %v\n", err)
	}
	return code
}

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
which only one process may have open at a time. "ringfence serve" opens one for many:
topic, group, produce and consume reach it with --server or RINGFENCE_SERVER. Start with
"ringfence demo", which needs nothing, or with "ringfence topic create" and
"ringfence produce".`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	f := root.PersistentFlags()
	f.StringVar(&a.dataDir, "data-dir", unset, "directory of the topics (or RINGFENCE_DATA_DIR, an absolute path)")
	f.Lookup("data-dir").DefValue = "" // what help shows
	f.StringVar(&a.client.server, "server", "", "reach the topics through a server: HOST:PORT, tls://HOST:PORT or unix:PATH (or "+serverVar+")")
	f.StringVar(&a.context, "context", "", "reach the topics through the server that is kept under this name (or RINGFENCE_CONTEXT)")
	f.StringVar(&a.client.ca, "server-ca", "", "authorities that the server's certificate is of, PEM")
	f.StringVar(&a.client.cert, "client-cert", "", "certificate to show to the server, PEM")
	f.StringVar(&a.client.key, "client-key", "", "its private key, PEM")
	f.StringVar(&a.client.user, "user", "", "who logs in to the server (or "+userVar+"), with the password in --password-file or "+passwordVar+"; without a user, the token in "+tokenVar)
	f.StringVar(&a.client.passwordFile, "password-file", "", "file with the user's password")
	f.DurationVar(&a.client.timeout, "timeout", 30*time.Second, "how long one request to a server may take, with all that is tried again")
	f.StringVar(&a.engine, "io", "auto", "how to reach the disk: auto, io_uring or pool")
	f.BoolVar(&a.json, "json", false, "report as JSON, and an error too: {\"error\": TEXT, \"code\": EXIT CODE}, the last line of standard error")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nSee '%s --help'", err, cmd.CommandPath())}
	})
	root.Version = thisVersion().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(a.subcommands()...)
	root.AddCommand(exitCodesTopic())
	checkArguments(root)
	return root
}

// checkArguments makes wrong arguments and unknown subcommands usage errors.
func checkArguments(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{fmt.Errorf("%w\nUsage: %s", err, cmd.UseLine())}
			}
			return nil
		}
	} else if cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("unknown command %q; see '%s --help'", args[0], cmd.CommandPath())}
			}
			return nil
		}
		if cmd.Run == nil && cmd.RunE == nil {
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
	for _, sub := range cmd.Commands() {
		checkArguments(sub)
	}
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// connectionFlags say how a server is reached. Each can stand in the environment as
// well, as variableOf says, and most in a context. The command line wins over the
// environment, and that over the context.
var connectionFlags = []string{"server", "context", "server-ca", "client-cert", "client-key", "user", "password-file", "timeout"}

const (
	variablePrefix = "RINGFENCE_"

	dataDirVar  = variablePrefix + "DATA_DIR"
	serverVar   = variablePrefix + "SERVER"
	contextVar  = variablePrefix + "CONTEXT"
	userVar     = variablePrefix + "USER"
	passwordVar = variablePrefix + "PASSWORD" // secrets have no flag
	tokenVar    = variablePrefix + "TOKEN"
)

// variableOf is the variable of a flag.
func variableOf(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// clientFlags say how a server is reached.
type clientFlags struct {
	server, context    string
	ca, cert, key      string
	user, passwordFile string
	timeout            time.Duration

	from map[string]string // where a flag's value is from that the command line does not give
}

// onlyFlags takes back what the environment said: a context keeps what somebody named for
// it.
func (f *clientFlags) onlyFlags() {
	for flag, value := range map[string]*string{"server-ca": &f.ca, "client-cert": &f.cert, "client-key": &f.key} {
		if f.from[flag] != "" {
			*value = ""
		}
	}
}

// said names a setting as it was given.
func (f clientFlags) said(flag string) string { return cmp.Or(f.from[flag], "--"+flag) }

func (a *app) addCommonFlags(f *pflag.FlagSet) {
	f.StringVar(&a.dataDir, "data-dir", unset, "directory of the topics")
	f.Lookup("data-dir").DefValue = "" // what help shows
	f.StringVar(&a.client.server, "server", "", "reach the topics through a server: HOST:PORT, tls://HOST:PORT or unix:PATH")
	f.StringVar(&a.client.context, "context", "", "reach the topics through the server that is kept under this name")
	f.StringVar(&a.client.ca, "server-ca", "", "authorities that the server's certificate is of, PEM")
	f.StringVar(&a.client.cert, "client-cert", "", "certificate to show to the server, PEM")
	f.StringVar(&a.client.key, "client-key", "", "its private key, PEM")
	f.StringVar(&a.client.user, "user", "", "who logs in to the server")
	f.StringVar(&a.client.passwordFile, "password-file", "", "file with the user's password")
	f.DurationVar(&a.client.timeout, "timeout", 30*time.Second, "how long one request to a server may take, with all that is tried again")
	f.StringVar(&a.engine, "io", "auto", "how to reach the disk: auto, io_uring or pool")
	f.BoolVar(&a.json, "json", false, "report as JSON, and an error too, as 'ringfence help exit-codes' says")
}

// thisHost marks the commands that are about this host or its files, whatever server
// there may be.
const thisHost = "this-host"

// askedByAdmin marks a command that asks a server's admin address, which speaks HTTP, and
// heeds nothing of what says where topics are.
const askedByAdmin = "admin-address"

// unheeded refuses what says where topics are, for a command that asks the admin address.
func unheeded(cmd *cobra.Command) error {
	for _, name := range append([]string{dataDirSetting, ioSetting}, connectionFlags...) {
		if name != "timeout" && cmd.Flags().Changed(name) {
			return usageError{fmt.Errorf("--%s: '%s' asks the admin address of a server, not the one of clients: give what 'serve --admin' says with --admin HOST:PORT", name, cmd.CommandPath())}
		}
	}
	return nil
}

// ofThisHost marks a command.
func ofThisHost(cmd *cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{thisHost: ""}
	return cmd
}

// takeCommon looks at the flags that every command has, before it runs: it refuses those
// that the command would not heed although it looks as if it did, and fills in what the
// environment says. Who logs in, and which server it is, is settled later: a context may
// have a say in that.
func (a *app) takeCommon(cmd *cobra.Command) error {
	flags := cmd.Flags()
	take := []string{"server-ca", "client-cert", "client-key", "timeout", ioSetting}
	if _, admin := cmd.Annotations[askedByAdmin]; admin {
		if err := unheeded(cmd); err != nil {
			return err
		}
		take = []string{"timeout"}
	}
	for c := cmd; c != nil; c = c.Parent() {
		if _, local := c.Annotations[thisHost]; !local {
			continue
		}
		for _, name := range connectionFlags {
			if flags.Changed(name) {
				return usageError{fmt.Errorf("--%s: 'ringfence %s' is about this host, and reaches no server", name, c.Name())}
			}
		}
		a.local = true
		if c.Name() == "serve" {
			return nil // it has settings, with rules of their own
		}
		take = []string{ioSetting}
	}
	if flags.Changed("server") && a.client.server == "" {
		return usageError{errors.New("--server is blank: leave it out, or name a server")}
	}
	if flags.Changed("client-cert") || flags.Changed("client-key") { // both are from one place
		take = slices.DeleteFunc(take, func(name string) bool { return strings.HasPrefix(name, "client-") })
	}
	a.client.from = map[string]string{}
	for _, name := range take {
		value, set := a.env(variableOf(name))
		if !set || value == "" || flags.Changed(name) {
			continue
		}
		f := flags.Lookup(name)
		if err := f.Value.Set(value); err != nil {
			return usageError{fmt.Errorf("%s is %q: %w", variableOf(name), value, meant(f, err))}
		}
		a.client.from[name] = variableOf(name)
	}
	if a.client.timeout <= 0 {
		return usageError{fmt.Errorf("%s is %s: want more than 0", a.client.said("timeout"), a.client.timeout)}
	}
	return nil
}

// serverAddress is the server that the command is about; "" means a data directory. The
// command line wins over the environment, and that over the context in use.
func (a *app) serverAddress() (string, error) {
	switch {
	case a.client.server != "" && a.dataDirGiven():
		return "", usageError{errors.New("--server and --data-dir: topics are reached in one way or the other")}
	case a.client.context != "" && a.dataDirGiven():
		return "", usageError{errors.New("--context and --data-dir: topics are reached in one way or the other")}
	case a.client.context != "" && a.client.server != "":
		return "", usageError{errors.New("--context and --server: one of them names the server")}
	case a.client.server != "" || a.dataDirGiven():
		return a.client.server, nil
	}
	if a.client.context == "" {
		if addr, _ := a.env(serverVar); addr != "" {
			a.client.from["server"] = serverVar
			return addr, nil
		}
		if _, set := a.env(dataDirVar); set {
			return "", nil
		}
	}
	err := a.useContext()
	return a.client.server, err
}

// checkServer refuses an address that nothing can be reached at.
func (a *app) checkServer(addr string) error {
	if err := client.CheckAddress(addr); err != nil {
		return fmt.Errorf("%w; the address is what %s says", err, a.client.said("server"))
	}
	return nil
}

// connectionTopic is 'ringfence help connection'.
func (a *app) connectionTopic(common *pflag.FlagSet) *cobra.Command {
	var b strings.Builder
	b.WriteString(`Which topics a command is about, and how it reaches them. Each flag has a variable of
its name; the command line wins over the environment, and that over a context.

  --server ADDRESS, or a context, reaches the topics through 'ringfence serve'.
  --data-dir DIR works on a data directory that no other process has open; in the
  environment it is an absolute path.

Where the command line has neither of these nor --context, RINGFENCE_SERVER wins over
RINGFENCE_DATA_DIR, and that over the context of RINGFENCE_CONTEXT or, without it, the one
in use.

`)
	for _, name := range append([]string{dataDirSetting, ioSetting}, connectionFlags...) {
		f := common.Lookup(name)
		text := f.Usage
		if f.DefValue != "" {
			text += " (" + f.DefValue + ")"
		}
		fmt.Fprintln(&b, hanging(fmt.Sprintf("  --%-14s %-24s ", name, variableOf(name)), text))
	}
	fmt.Fprintf(&b, `  %-16s %-24s the user's password, in place of the file
  %-16s %-24s a token, in place of user and password

Secrets are never arguments: every process of the host can read those. A server is
reached over TLS if its address is tls://HOST:PORT, or if --server-ca or --client-cert,
or their variables or those of a context, say so. 'ringfence context add' keeps all of
it but password, token and timeout under a name.`, "", passwordVar, "", tokenVar)
	return &cobra.Command{Use: "connection", Short: "How commands reach topics: flags, variables, contexts", Long: b.String()}
}

// isCommonVariable: it belongs to the flags that every command has, or to tests.
func isCommonVariable(name string) bool {
	return slices.ContainsFunc(connectionFlags, func(flag string) bool { return variableOf(flag) == name }) ||
		slices.Contains([]string{dataDirVar, passwordVar, tokenVar, "RINGFENCE_LOGS", "RINGFENCE_LONG"}, name)
}

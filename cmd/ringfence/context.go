package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/ringfence/ringfence/engine/client"
	"github.com/spf13/cobra"
)

// A context is a server under a name, so that commands need not be told each time.
// They are kept in one file of the user's.
type savedContext struct {
	Server string `json:"server"`
	CA     string `json:"server_ca,omitempty"`
	Cert   string `json:"client_cert,omitempty"`
	Key    string `json:"client_key,omitempty"`
	User   string `json:"user,omitempty"`
	Secret string `json:"password_file,omitempty"` // where the user's password is, never the password
}

type contextFile struct {
	Current  string                  `json:"current,omitempty"`
	Contexts map[string]savedContext `json:"contexts"`
}

// contextPath is where the contexts are kept.
func (a *app) contextPath() (string, error) {
	if dir, ok := a.env("XDG_CONFIG_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "ringfence", "contexts.json"), nil
	}
	home, ok := a.env("HOME")
	if !ok || !filepath.IsAbs(home) {
		return "", errors.New("where contexts are kept is not known: set XDG_CONFIG_HOME or HOME")
	}
	return filepath.Join(home, ".config", "ringfence", "contexts.json"), nil
}

func (a *app) readContexts() (contextFile, error) {
	f := contextFile{Contexts: map[string]savedContext{}}
	path, err := a.contextPath()
	if err != nil {
		return f, err
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("%s: %w: correct it, or remove it and add the contexts again", path, err)
	}
	if f.Contexts == nil {
		f.Contexts = map[string]savedContext{}
	}
	return f, nil
}

// writeContexts replaces the file: a crash leaves the old one or the new one.
func (a *app) writeContexts(f contextFile) error {
	path, err := a.contextPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", append(b, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// whereContextsAre is where one is corrected.
const whereContextsAre = "'ringfence context add --force' replaces it"

// useContext fills in how the server is reached where the command line, and the
// environment, say nothing of it.
func (a *app) useContext() error {
	name := a.client.context
	if name == "" {
		name, _ = a.env(contextVar)
	}
	f, err := a.readContexts()
	if err != nil {
		if name == "" {
			return nil // nobody asked for one
		}
		return err
	}
	name = cmp.Or(name, f.Current)
	if name == "" {
		return nil
	}
	c, ok := f.Contexts[name]
	if !ok {
		return noSuchContext(name)
	}
	a.client.server = c.Server
	in := func(flag string) { a.client.from[flag] = fmt.Sprintf("the %s of context %q", flag, name) }
	a.client.from["server"] = fmt.Sprintf("context %q (%s)", name, whereContextsAre)
	if a.client.ca == "" {
		a.client.ca = c.CA
		in("server-ca")
	}
	if a.client.cert == "" && a.client.key == "" { // they are from one place
		a.client.cert, a.client.key = c.Cert, c.Key
		in("client-cert")
		in("client-key")
	}
	if a.client.user == "" && a.client.passwordFile == "" && !a.hasCredentials() {
		a.client.user, a.client.passwordFile = c.User, c.Secret
		in("password-file")
	}
	return nil
}

func (a *app) contextCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "context",
		Short: "Keep servers under names",
		Long: `Keep servers under names. The one in use is what topic, produce, consume and group are
about when neither the command line nor the environment names a server or a data
directory; --context, or RINGFENCE_CONTEXT, names another one.`,
	}
	cmd.AddCommand(a.contextAddCommand(), a.contextUseCommand(), a.contextLsCommand(), a.contextDescribeCommand(), a.contextDeleteCommand())
	return cmd
}

func (a *app) contextAddCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Keep the server that --server names; the first one is in use at once",
		Long: `Keep a server under a name: its address, and how it is reached as 'ringfence help
connection' says, as the flags of this command say. The environment is not kept, nor are
passwords and tokens, only where a password's file is. The first context is in use at
once.`,
		Example: "  ringfence context add prod --server tls://log.example:4040 --server-ca ca.pem",
		RunE: func(_ *cobra.Command, args []string) error {
			if args[0] == "" {
				return usageError{errors.New("the name of a context is not empty")}
			}
			a.client.onlyFlags()
			c := savedContext{Server: a.client.server, User: a.client.user}
			if c.Server == "" {
				return usageError{errors.New("which server? Give --server")}
			}
			if err := client.CheckAddress(c.Server); err != nil {
				return err
			}
			secret := a.client.passwordFile
			if secret != "" && c.User == "" {
				return usageError{errors.New("a password file, and no user: whose is it? Give --user")}
			}
			for _, p := range []struct {
				from string
				to   *string
			}{{a.client.ca, &c.CA}, {a.client.cert, &c.Cert}, {a.client.key, &c.Key}, {secret, &c.Secret}} {
				if p.from == "" {
					continue
				}
				path, err := filepath.Abs(p.from) // commands run elsewhere, too
				if err != nil {
					return err
				}
				*p.to = path
			}
			if _, err := a.client.tls(); err != nil {
				return err
			}
			f, err := a.readContexts()
			if err != nil {
				return err
			}
			if old, there := f.Contexts[args[0]]; there && old != c && !force {
				return conflict{fmt.Errorf("there is a context %q, for server %s%s: give --force to replace it, or another name", args[0], old.Server, ofUserText(old.User))}
			}
			if len(f.Contexts) == 0 {
				f.Current = args[0]
			}
			f.Contexts[args[0]] = c
			if err := a.writeContexts(f); err != nil {
				return err
			}
			return a.reportContexts(f)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace a context of the name")
	return cmd
}

func ofUserText(user string) string {
	if user == "" {
		return ""
	}
	return " as user " + user
}

func (a *app) contextUseCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "use [NAME]",
		Short: "Use a context from now on; without a name, none",
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeContexts(args, func(f *contextFile, name string) { f.Current = name })
		},
	}
}

func (a *app) contextDeleteCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Forget a context",
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeContexts(args, func(f *contextFile, name string) {
				delete(f.Contexts, name)
				if f.Current == name {
					f.Current = ""
				}
			})
		},
	}
}

func (a *app) contextLsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "ls",
		Short: "List the contexts",
		RunE: func(*cobra.Command, []string) error {
			f, err := a.readContexts()
			if err != nil {
				return err
			}
			return a.reportContexts(f)
		},
	}
}

func (a *app) contextDescribeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "describe [NAME]",
		Short: "Show a context; without a name, the one in use",
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := a.readContexts()
			if err != nil {
				return err
			}
			name := f.Current
			if len(args) > 0 {
				name = args[0]
			}
			c, ok := f.Contexts[name]
			switch {
			case !ok && name == "":
				return notFound{errors.New("no context is in use; see 'ringfence context ls'")}
			case !ok:
				return noSuchContext(name)
			}
			return a.report(struct {
				Name    string `json:"name"`
				Current bool   `json:"in_use"`
				savedContext
			}{name, name == f.Current, c}, func() {
				a.printf("context %s\n", name)
				a.table([][]string{
					{"  server", c.Server}, {"  server CA", cmp.Or(c.CA, "-")}, {"  client cert", cmp.Or(c.Cert, "-")}, {"  client key", cmp.Or(c.Key, "-")},
					{"  user", cmp.Or(c.User, "-")}, {"  password file", cmp.Or(c.Secret, "-")},
				}...)
			})
		},
	}
}

func noSuchContext(name string) error {
	return notFound{fmt.Errorf("there is no context %q; see 'ringfence context ls'", name)}
}

// changeContexts does something to the context that args name.
func (a *app) changeContexts(args []string, change func(*contextFile, string)) error {
	f, err := a.readContexts()
	if err != nil {
		return err
	}
	name := ""
	if len(args) > 0 {
		name = args[0]
		if _, ok := f.Contexts[name]; !ok {
			return noSuchContext(name)
		}
	}
	change(&f, name)
	if err := a.writeContexts(f); err != nil {
		return err
	}
	return a.reportContexts(f)
}

func (a *app) reportContexts(f contextFile) error {
	return a.report(f, func() {
		if len(f.Contexts) == 0 {
			a.printf("no contexts; keep a server with 'ringfence context add NAME --server HOST:PORT'\n")
			return
		}
		rows := [][]string{{"", "CONTEXT", "SERVER", "SERVER CA", "CLIENT CERT", "USER"}}
		var names []string
		for name := range f.Contexts {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			c, mark := f.Contexts[name], ""
			if name == f.Current {
				mark = "*"
			}
			rows = append(rows, []string{mark, name, c.Server, cmp.Or(c.CA, "-"), cmp.Or(c.Cert, "-"), cmp.Or(c.User, "-")})
		}
		a.table(rows...)
	})
}

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Every command explains itself, shortly: what all commands have is explained once, and
// each says where.
func TestEveryCommandHasHelp(t *testing.T) {
	a := &app{}
	common := a.rootCommand().PersistentFlags()
	for words, cmd := range commands(t) {
		out := ok(t, "", append(strings.Fields(words), "--help")...)
		if !strings.Contains(out, "Usage:\n  ringfence "+words) || !strings.Contains(out, "--json") && !strings.HasPrefix(words, "completion") || strings.Contains(out, "\x00") || strings.Contains(out, "\n\n\n") {
			t.Errorf("help of %s: %s", words, out)
		}
		if cmd.Short == "" || len(cmd.Short) > 100 {
			t.Errorf("%s is %q in short", words, cmd.Short)
		}
		reaches := true
		for c := cmd; c.HasParent(); c = c.Parent() {
			_, local := c.Annotations[thisHost]
			reaches = reaches && !local && c.Name() != "completion" && c.Name() != "version" && c.Name() != "cursor" && c.Name() != "shm"
		}
		if reaches && !strings.Contains(out, "'ringfence help connection'") {
			t.Errorf("help of %s does not say how a server is reached: %s", words, out)
		}
		own := 0
		cmd.LocalFlags().VisitAll(func(*pflag.Flag) { own++ })
		if most := 24 + 2*own + len(cmd.Commands()) + strings.Count(cmd.Long+cmd.Example, "\n"); strings.Count(out, "\n") > most {
			t.Errorf("help of %s has %d lines", words, strings.Count(out, "\n"))
		}
		for _, name := range connectionFlags[2:] {
			if strings.Contains(out, "\n      --"+name+" ") {
				t.Errorf("help of %s explains --%s, as all do", words, name)
			}
		}
	}
	out := ok(t, "")
	if !strings.Contains(out, "\n  demo ") || strings.Contains(out, "demo-child") || strings.Count(out, "\n") > 45 {
		t.Errorf("without a command: %s", out)
	}
	for _, topic := range []string{"connection", "exit-codes"} {
		if !strings.Contains(out, "\n  "+topic+" ") {
			t.Errorf("without a command, %s is not to be found: %s", topic, out)
		}
	}
	for _, cmd := range a.rootCommand().Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" && !strings.Contains(out, "\n  "+cmd.Name()+" ") {
			t.Errorf("without a command, %s is not to be found: %s", cmd.Name(), out)
		}
	}
	explained := ok(t, "", "help", "connection")
	common.VisitAll(func(f *pflag.Flag) {
		if f.Name != "json" && !strings.Contains(explained, "--"+f.Name+" ") {
			t.Errorf("help connection does not explain --%s: %s", f.Name, explained)
		}
	})
}

// A variable for each flag that says how a server is reached: what it says is heeded,
// the command line wins over it, and it wins over a context; help and README name it.
func TestVariablesOfTheConnection(t *testing.T) {
	certs := t.TempDir()
	cert, key, _ := certificates(t, certs, "root")
	_, otherKey, _ := certificates(t, t.TempDir(), "other")
	dir := filepath.Join(t.TempDir(), "d")
	s := serveIt(t, "--data-dir", dir, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", cert, "--admin-password-file", secretFile(t, "correct horse battery"))
	addr := s.address(t)
	addr = "localhost" + addr[strings.LastIndex(addr, ":"):]
	home := "HOME=" + t.TempDir()
	in := func(want int, says string, environ []string, args ...string) {
		t.Helper()
		if code, said := with(t, append(environ, home), args...); code != want || !strings.Contains(said, says) {
			t.Errorf("%v with %v: exit %d, want %d and %q: %s", args, environ, code, want, says, said)
		}
	}
	secret, wrong := secretFile(t, "correct horse battery"), secretFile(t, "a wrong password, it is")
	full := []string{"RINGFENCE_SERVER=" + addr, "RINGFENCE_SERVER_CA=" + cert, "RINGFENCE_CLIENT_CERT=" + cert, "RINGFENCE_CLIENT_KEY=" + key,
		"RINGFENCE_USER=admin", "RINGFENCE_PASSWORD_FILE=" + secret, "RINGFENCE_TIMEOUT=20s"}
	but := func(changed ...string) (environ []string) {
		for _, v := range full {
			name, _, _ := strings.Cut(v, "=")
			if !slices.ContainsFunc(changed, func(c string) bool { return strings.HasPrefix(c, name+"=") }) {
				environ = append(environ, v)
			}
		}
		return append(environ, changed...)
	}
	ls := []string{"topic", "ls"}
	in(exitOK, "no topics", full, ls...)
	// Each of them is heeded.
	in(exitUnreachable, "--server-ca", but("RINGFENCE_SERVER_CA="), ls...)
	in(exitUnreachable, "certificate", but("RINGFENCE_CLIENT_CERT=", "RINGFENCE_CLIENT_KEY="), ls...)
	in(exitUsage, "RINGFENCE_CLIENT_CERT and RINGFENCE_CLIENT_KEY", but("RINGFENCE_CLIENT_KEY="), ls...)
	in(exitUsage, "RINGFENCE_CLIENT_KEY", but("RINGFENCE_CLIENT_KEY="+otherKey), ls...)
	in(exitUsage, "RINGFENCE_SERVER_CA: open /none", but("RINGFENCE_SERVER_CA=/none"), ls...)
	in(exitUsage, "RINGFENCE_PASSWORD_FILE: open /none", but("RINGFENCE_PASSWORD_FILE=/none"), ls...)
	in(exitUsage, "RINGFENCE_PASSWORD_FILE: whose?", but("RINGFENCE_USER="), ls...)
	in(exitUsage, "both set", but("RINGFENCE_PASSWORD=x"), ls...)
	in(exitUsage, "RINGFENCE_TIMEOUT is", but("RINGFENCE_TIMEOUT=soon"), ls...)
	in(exitUsage, "RINGFENCE_TIMEOUT is -1s", but("RINGFENCE_TIMEOUT=-1s"), ls...)
	in(exitUsage, "--io", but("RINGFENCE_SERVER=", "RINGFENCE_IO=fast", dataDirVar+"="+dir), ls...)
	in(exitDenied, "secret is wrong", but("RINGFENCE_PASSWORD_FILE="+wrong), ls...)
	in(exitNotFound, "no context \"nowhere\"", []string{"RINGFENCE_CONTEXT=nowhere"}, ls...)
	// The command line wins.
	in(exitOK, "", but("RINGFENCE_SERVER_CA=/none"), append(ls, "--server-ca", cert)...)
	in(exitOK, "", but("RINGFENCE_CLIENT_KEY=/none"), append(ls, "--client-cert", cert, "--client-key", key)...)
	in(exitOK, "", but("RINGFENCE_PASSWORD_FILE=/none"), append(ls, "--password-file", secret)...)
	in(exitOK, "", but("RINGFENCE_TIMEOUT=soon"), append(ls, "--timeout", "30s")...)
	// A context is made of flags alone, and they win over one, each alone.
	in(exitUsage, "which server?", full, "context", "add", "kept")
	if code, out := with(t, append(full, home), "context", "add", "bare", "--server", addr); code != exitOK || strings.Contains(out, cert) || strings.Contains(out, "admin") {
		t.Errorf("exit %d: what nobody named for the context was kept:\n%s", code, out)
	}
	in(exitOK, addr, nil, "context", "add", "kept", "--server", addr, "--server-ca", cert, "--client-cert", cert, "--client-key", key,
		"--user", "admin", "--password-file", secret)
	in(exitOK, "", nil, "context", "use", "kept")
	in(exitOK, "no topics", nil, ls...)
	in(exitUsage, "RINGFENCE_SERVER_CA: open /none", []string{"RINGFENCE_SERVER_CA=/none"}, ls...)
	in(exitUsage, "RINGFENCE_CLIENT_CERT and RINGFENCE_CLIENT_KEY", []string{"RINGFENCE_CLIENT_CERT=" + cert}, ls...)
	in(exitDenied, "secret is wrong", []string{"RINGFENCE_USER=admin", "RINGFENCE_PASSWORD_FILE=" + wrong}, ls...)
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	in(exitUsage, `the password-file of context "kept": open`, nil, ls...)
	// They are no settings of serve, and no mistakes there.
	for _, v := range full {
		if name, _, _ := strings.Cut(v, "="); !isCommonVariable(name) {
			t.Errorf("%s is taken for a setting of serve", name)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	explained := ok(t, "", "help", "connection")
	for _, name := range append([]string{"password", "token"}, connectionFlags...) {
		if v := variableOf(name); !strings.Contains(explained, v) || !strings.Contains(string(readme), v) {
			t.Errorf("%s is not in 'help connection' or not in the README", v)
		}
	}
}

// A command that is about this host says so, in place of looking as if it asked a server.
func TestServerForACommandOfThisHost(t *testing.T) {
	for _, line := range []string{"serve --server-ca x", "serve --server x:1", "segment verify x --server x:1", "doctor --context prod", "demo --user me", "bench append --timeout 1s"} {
		fails(t, exitUsage, "is about this host", "", strings.Fields(line)...)
	}
	for _, line := range []string{"version", "cursor inspect --help", "serve --help"} {
		ok(t, "", append(strings.Fields(line), "--server", "x:1")...)
	}
}

// Help is laid out: paragraphs are filled to one width whoever changed a word in them, no
// line is longer than a terminal, and what stands behind a flag is called what it is, and
// not what type of Go holds it.
func TestHelpIsLaidOut(t *testing.T) {
	const text = "one two 'ringfence help connection' three\nfour\n\n  a table,\n    as it is\n\nhead:\n  indented"
	long := strings.Repeat("12345678 ", 8)
	for in, want := range map[string]string{
		text:                                "one two 'ringfence help connection' three four\n\n  a table,\n    as it is\n\nhead:\n  indented",
		long + "'ringfence x' end":          long[:71] + " 'ringfence x'\nend",
		long + "the 'ringfence help x' end": long[:71] + " the\n'ringfence help x' end",
	} {
		if got := flow(in); got != want {
			t.Errorf("%q flows to\n%s\nwant\n%s", in, got, want)
		}
	}
	pages := map[string]string{}
	for _, words := range []string{"help exit-codes", "help connection", ""} {
		pages[words] = ok(t, "", strings.Fields(words)...)
	}
	flags := 0
	for words, cmd := range commands(t) {
		page := ok(t, "", append(strings.Fields(words), "--help")...)
		pages[words] = strings.ReplaceAll(page, "Examples:\n"+cmd.Example, "")
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if flags++; f.Value.Type() != "bool" && valueNames[f.Name] == "" && valueNames[f.Value.Type()] == "" {
				t.Errorf("%s: nothing says what stands behind --%s", words, f.Name)
			}
		})
	}
	if flags < 80 {
		t.Errorf("only %d flags", flags)
	}
	for words, page := range pages {
		if page = strings.TrimSpace(page); flow(page) != page {
			t.Errorf("%q has a ragged line:\n%s", words, page)
		}
		for line := range strings.Lines(page) {
			if len(strings.TrimSuffix(line, "\n")) > flagsWidth {
				t.Errorf("%q: a line of %d characters: %s", words, len(line), line)
			}
		}
	}
}

package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands are all that a person can call, with the words that call them.
func commands(t *testing.T) map[string]*cobra.Command {
	t.Helper()
	a := &app{out: io.Discard, err: io.Discard, env: os.LookupEnv, environ: os.Environ}
	all := map[string]*cobra.Command{}
	var walk func(cmd *cobra.Command, words string)
	walk = func(cmd *cobra.Command, words string) {
		for _, sub := range cmd.Commands() {
			if at := strings.TrimSpace(words + " " + sub.Name()); !sub.Hidden && sub.Runnable() {
				all[at] = sub
				walk(sub, at)
			}
		}
	}
	walk(a.rootCommand(), "")
	if len(all) < 40 {
		t.Fatalf("only %d commands", len(all))
	}
	return all
}

// A value that a setting of serve cannot have ends with the code for that, by name, be it
// on the command line, in the environment or in a file, and nothing is made (N01).
func TestN01MistakesInSettings(t *testing.T) {
	long := "/" + strings.Repeat("x", maxSocketPath)
	plain := filepath.Join(t.TempDir(), "plain")
	write(t, plain, "no socket\n")
	numbers := []string{"many", "-1", "0", "99999999999"}
	sizes := []string{"much", "-1", "1", "8000000TiB"}
	times := []string{"soon", "-5s", "0s"}
	addresses := []string{"nonsense", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:no such service"}
	sockets := []string{long, plain, filepath.Dir(plain), filepath.Join(t.TempDir(), "none", "socket"), filepath.Join(plain, "socket")}
	users := []string{"root", "-1", "4294967295"}
	yes := []string{"perhaps", ""}
	mistakes := map[string][]string{
		"listen": addresses, "admin": addresses, "socket": sockets, "shm": sockets, "io": {"fast", ""},
		"log-format": {"xml", ""}, "log-level": {"loud", ""}, "insecure": yes, "no-auth": yes,
		"segment-size": sizes, "arena-size": sizes, "reserve-size": {"much", "-1", "0", "8000000TiB"}, "shm-arena": sizes, "shm-memory": sizes[:3], "shm-user-memory": sizes,
		"max-connections": numbers, "max-connections-per-ip": numbers, "max-requests": numbers, "shm-clients": numbers, "shm-user-clients": {"many", "-1", "99999999999"},
		"idle-timeout": times, "frame-timeout": times, "write-timeout": times, "group-session": times, "shutdown-grace": times,
		"shm-uids": users, "shm-gids": users, "shm-trusted-uids": users,
		"data-dir": {"", plain},
		// Files: what is in them is looked at when the rest is right, and refused then.
		"tls-cert": nil, "tls-key": nil, "tls-client-ca": nil, "admin-password-file": nil,
	}
	serve := commands(t)["serve"]
	settings := []string{"data-dir", "io"}
	serve.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if isSetting(serve.Flags(), f.Name) {
			settings = append(settings, f.Name)
		}
	})
	for _, name := range settings {
		if _, ok := mistakes[name]; !ok {
			t.Errorf("no mistake is known in setting %s", name)
		}
	}
	dir := filepath.Join(t.TempDir(), "d")
	for name, values := range mistakes {
		for _, value := range values {
			for _, where := range []string{"flag", "environment", "file"} {
				environ := []string{dataDirVar + "=" + dir}
				args := []string{"serve"}
				for setting, standard := range map[string]string{"listen": "127.0.0.1:0", "admin": ""} {
					if setting != name {
						args = append(args, "--"+setting, standard)
					}
				}
				switch variable := variableOf(name); where {
				case "flag":
					args = append(args, "--"+name+"="+value)
				case "environment":
					environ = append(environ, variable+"="+value)
				case "file":
					conf := filepath.Join(t.TempDir(), "conf")
					write(t, conf, name+" = "+value+"\n")
					args = append(args, "--config", conf)
					if name == dataDirSetting {
						environ = nil // which would win
					}
				}
				if code, said := with(t, environ, args...); code != exitUsage || goText(said) || !strings.Contains(said, name) && !strings.Contains(said, variableOf(name)) && !strings.Contains(said, value) {
					t.Errorf("%s = %.40q, %s: exit %d, want %d and its name:\n%.300s", name, value, where, code, exitUsage, said)
				}
			}
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a directory was made")
	}
}

// with runs a command line in this environment alone.
func with(t *testing.T, environ []string, args ...string) (int, string) {
	t.Helper()
	var said bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &said, err: &said, environ: func() []string { return environ }}
	a.env = func(name string) (value string, set bool) {
		for _, v := range environ {
			if n, text, _ := strings.Cut(v, "="); n == name {
				value, set = text, true
			}
		}
		return value, set
	}
	return a.run(t.Context(), args), said.String()
}

// Flags that are numbers, sizes, times and the like do not take words, in any command.
func TestMistakesInEveryFlag(t *testing.T) {
	seen := 0
	for words, cmd := range commands(t) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "string", "stringArray", "strings":
				return // what may stand there the next test says
			}
			seen++
			args := append(strings.Fields(words), "--"+f.Name+"=no such value")
			if code, said := with(t, nil, args...); code != exitUsage || !strings.Contains(said, f.Name) || wanted[f.Value.Type()] != "" && !strings.Contains(said, "want ") || goText(said) {
				t.Errorf("%v: exit %d, want %d: %s", args, code, exitUsage, said)
			}
		})
	}
	if seen < 60 {
		t.Errorf("only %d flags", seen)
	}
}

// goText says whether somebody reads what a function of Go says of a number or a time.
func goText(said string) bool {
	return strings.Contains(said, "strconv") || strings.Contains(said, "parsing") || strings.Contains(said, "time: ")
}

// A number too large for its flag, and a time in a variable, are told in the same words.
func TestNumbersInOurWords(t *testing.T) {
	for _, c := range []struct{ line, env, says string }{
		{"consume t --max 99999999999999999999", "", `invalid argument "99999999999999999999" for "--max": want a whole number, and none that large`},
		{"topic create t --bits 256", "", "want a whole number from 0 to 255, and none that large"},
		{"topic ls", "RINGFENCE_TIMEOUT=soon", `RINGFENCE_TIMEOUT is "soon": want a time like 500ms, 30s or 1h30m`},
		{"serve", "RINGFENCE_MAX_REQUESTS=99999999999999999999", "want a whole number, and none that large"},
	} {
		if code, said := with(t, []string{c.env}, strings.Fields(c.line)...); code != exitUsage || !strings.Contains(said, c.says) || goText(said) {
			t.Errorf("%s: exit %d: %s, want %q", c.line, code, said, c.says)
		}
	}
}

// Values that can be read and mean nothing are mistakes too.
func TestMistakesInValues(t *testing.T) {
	dir, _ := filled(t, 1)
	none := filepath.Join(t.TempDir(), "none")
	for code, lines := range map[int][]string{
		exitUsage: {
			"produce t --batch 1", "produce t --batch 1GiB", "produce t --compress x", "produce t --key-regexp (", "produce t --header x", "produce t --linger -1s",
			"produce t --file /tmp", "produce t --timeout -1s", "produce t --io x", "consume t --from x", "consume t --from -5m", "consume t --from=",
			"consume t --max -1", "consume t --format x", "consume t --group=", "consume t --member x",
			"topic ls --server=", "topic ls --server x", "topic ls --server 127.0.0.1:99999", "topic ls --server tls://x", "topic ls --server unix:",
			"topic ls --server http://x:1", "topic ls --server 127.0.0.1:1 --server-ca " + none, "topic ls --server 127.0.0.1:1 --client-cert " + none,
			"topic ls --server 127.0.0.1:1 --timeout 0s", "topic create n --bits 33", "topic split t x", "topic merge t 0 99999999999",
			"topic policy set p --segment-max-age 1s", "group reset t g --to x", "group reset t g", "doctor --seconds -1", "doctor --io x", "demo --lines -1",
			"segment verify " + dir, "cursor inspect x", "user token create x --expires -1d", "quota set x", "acl grant x y z", "context add x", "context add x --server x",
			"bench append --record 0", "bench append --batch 1", "bench append --in-flight 0", "bench append --ahead -1", "bench append --rate -1",
			"bench append --records -1", "bench append --roll-every -1s", "bench append --rows x --suite", "bench append --runs 0 --suite", "bench append --seconds -1",
			"bench append --segment 1", "bench append --workers 0", "bench append --floor-size 1", "bench append --compress x", "bench tcp --runs 0 --suite", "bench shm --seconds 0",
		},
		exitNotFound: {
			"produce t --file " + none, "demo --dir " + none, "demo --file " + none, "bench append --dir " + none, "segment dump " + none, "topic ls --data-dir " + none,
			"serve --data-dir " + none + "/d",
		},
	} {
		for _, line := range lines {
			environ := []string{dataDirVar + "=" + dir, "HOME=" + t.TempDir()}
			if strings.Contains(line, "--server") || strings.Contains(line, "--data-dir") {
				environ = environ[1:]
			}
			if got, said := with(t, environ, strings.Fields(line)...); got != code {
				t.Errorf("%s: exit %d, want %d: %s", line, got, code, said)
			}
		}
	}
}

// What serve refuses because of the host at the moment is no mistake in a setting: it may
// be right the next time.
func TestHostAtTheMoment(t *testing.T) {
	s := serveIt(t, "--data-dir", filepath.Join(t.TempDir(), "d"))
	code, said := serveRefused(t, "--listen", s.address(t))
	if code != exitFailed || !strings.Contains(said, "--listen") || !strings.Contains(said, "in use") {
		t.Errorf("exit %d: %s", code, said)
	}
}

// Arguments that are missing or too many are named, and so is the command that somebody
// may have meant.
func TestMistakesInArguments(t *testing.T) {
	for line, says := range map[string]string{
		"produce":                   "ringfence: TOPIC is missing\nUsage: ringfence produce TOPIC [flags]\n",
		"produce a b":               "ringfence: \"b\" is one argument too many\nUsage: ringfence produce TOPIC [flags]\n",
		"topic merge t":             "ringfence: RANGE and RANGE are missing\n",
		"topic merge t 1":           "ringfence: RANGE is missing\n",
		"group reset t --to end":    "ringfence: GROUP is missing\n",
		"acl grant ada produce":     "ringfence: KIND is missing\n",
		"topic policy bind t p q":   "ringfence: \"q\" is one argument too many\n",
		"serve now":                 "ringfence: \"now\" is one argument too many\n",
		"completion bash x":         "ringfence: \"x\" is one argument too many\n",
		"user token delete ada one": "ringfence: \"one\" is one argument too many\n",
		"toppic":                    "ringfence: unknown command \"toppic\"; is it topic? Else see 'ringfence --help'\n",
		"topic crate t":             "ringfence: unknown command \"crate\"; is it create? Else see 'ringfence topic --help'\n",
		"topic xyzzy":               "ringfence: unknown command \"xyzzy\"; see 'ringfence topic --help'\n",
		"help topic delte":          "ringfence: there is no help about \"topic delte\"; is it delete? Else see 'ringfence topic --help'\n",
		"completion powershell":     "ringfence: unknown command \"powershell\"; see 'ringfence completion --help'\n",
	} {
		if r := ringfence(t, "", strings.Fields(line)...); r.code != exitUsage || !strings.HasPrefix(r.err, says) {
			t.Errorf("%s: exit %d: %s, want %s", line, r.code, r.err, says)
		}
	}
	for words, cmd := range commands(t) {
		named, least := argumentsOf(cmd)
		if many := append(strings.Fields(words), "a", "b", "c", "d", "e"); words != "help" && !cmd.HasSubCommands() && !strings.Contains(cmd.Use, "...") {
			fails(t, exitUsage, "is one argument too many", "", many...)
		}
		if least > len(named) || least > 0 && ringfence(t, "", strings.Fields(words)...).code != exitUsage {
			t.Errorf("%s takes %d of %q, and runs without", words, least, named)
		}
	}
}

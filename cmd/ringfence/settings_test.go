package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func settingsCommand() (*cobra.Command, *string, *int, *string) {
	cmd := &cobra.Command{Use: "serve", Run: func(*cobra.Command, []string) {}}
	f := cmd.Flags()
	name := f.String("listen-on", "here", "")
	count := f.Int("count", 1, "")
	secret := f.String("secret", "", "")
	f.String("config", "", "")
	return cmd, name, count, secret
}

// The command line wins over the environment, and that over the file; each value says
// where it is from.
func TestSettingsSources(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf")
	if err := os.WriteFile(file, []byte("# how we run\n\ncount = 7\nsecret = \" two words \"\nlisten-on=file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd, name, count, secret := settingsCommand()
	if err := cmd.ParseFlags([]string{"--listen-on", "flag"}); err != nil {
		t.Fatal(err)
	}
	all, err := resolveSettings(cmd, file, []string{"RINGFENCE_LISTEN_ON=env", "RINGFENCE_COUNT=9", "HOME=/", "RINGFENCE_DATA_DIR=/d"}, "secret")
	if err != nil {
		t.Fatal(err)
	}
	if *name != "flag" || *count != 9 || *secret != " two words " {
		t.Errorf("set to %q, %d, %q", *name, *count, *secret)
	}
	got := map[string]string{}
	for _, s := range all {
		got[s.Name] = s.Value + " from " + s.Source
	}
	for name, want := range map[string]string{
		"listen-on": "flag from flag",
		"count":     "9 from RINGFENCE_COUNT",
		"secret":    "(hidden) from " + file + ":4",
	} {
		if got[name] != want {
			t.Errorf("%s is listed as %q, want %q", name, got[name], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("listed: %v", got)
	}
}

// What nobody knows, or cannot read, is refused with where it stands (scenario N01).
func TestN01SettingsRefused(t *testing.T) {
	for _, c := range []struct {
		file string
		env  []string
		want string
	}{
		{file: "cuont = 7", want: `:1: there is no setting "cuont"`},
		{file: "count = 7\n\ncount = 8", want: `:3: "count" was set at`},
		{file: "count", want: `:1: "count": want 'name = value'`},
		{file: "= 7", want: `want 'name = value'`},
		{file: "count = many", want: `:1: count = "many": `},
		{file: "config = x", want: `there is no setting "config"`},
		{env: []string{"RINGFENCE_CUONT=1"}, want: `RINGFENCE_CUONT is set, and there is no setting "cuont"`},
		{env: []string{"RINGFENCE_Count=1"}, want: `RINGFENCE_Count is set: the names of settings are in capitals`},
		{env: []string{"RINGFENCE_COUNT="}, want: `RINGFENCE_COUNT: count = ""`},
	} {
		file := ""
		if c.file != "" {
			file = filepath.Join(t.TempDir(), "conf")
			if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cmd, _, _, _ := settingsCommand()
		_, err := resolveSettings(cmd, file, c.env)
		if err == nil || !strings.Contains(err.Error(), c.want) || exitCode(err) != exitUsage {
			t.Errorf("file %q, environment %q: %v, want %q", c.file, c.env, err, c.want)
		}
	}
	cmd, _, _, _ := settingsCommand()
	if _, err := resolveSettings(cmd, "/does/not/exist", nil); exitCode(err) != exitUsage {
		t.Errorf("a file that is not there: %v", err)
	}
}

// A service that is called ringfence puts variables into the environment of its
// neighbours, the server too; what looks like them and is a mistake is still refused.
func TestVariablesOfAService(t *testing.T) {
	for v, want := range map[string]bool{
		"RINGFENCE_SERVICE_HOST=10.0.0.7":                  true,
		"RINGFENCE_SERVICE_PORT=4040":                      true,
		"RINGFENCE_SERVICE_PORT_CLIENTS=4040":              true,
		"RINGFENCE_PORT=tcp://10.0.0.7:4040":               true,
		"RINGFENCE_PORT_4040_TCP=tcp://10.0.0.7:4040":      true,
		"RINGFENCE_PORT_4040_TCP_PROTO=tcp":                true,
		"RINGFENCE_PORT_4040_TCP_PORT=4040":                true,
		"RINGFENCE_PORT_4040_TCP_ADDR=10.0.0.7":            true,
		"RINGFENCE_ADMIN_SERVICE_HOST=10.0.0.7":            true, // of a service ringfence-admin
		"RINGFENCE_ADMIN_PORT=tcp://10.0.0.7:4041":         true,
		"RINGFENCE_ADMIN_PORT_4041_TCP=tcp://10.0.0.7:404": true,
		"RINGFENCE_PORT=4040":                              false,
		"RINGFENCE_PORTS=tcp://10.0.0.7:4040":              false,
		"RINGFENCE_SERVICE=x":                              false,
		"RINGFENCE_SERVICE_HOSTS=x":                        false,
		"RINGFENCE_PORT_X_TCP=tcp://10.0.0.7:4040":         false,
		"RINGFENCE_PORT_4040_TCP_ADRR=10.0.0.7":            false,
	} {
		cmd, _, _, _ := settingsCommand()
		all, err := resolveSettings(cmd, "", []string{v})
		if (err == nil) != want || err != nil && exitCode(err) != exitUsage {
			t.Errorf("%s: %v", v, err)
		}
		if err == nil && len(all) != 3 {
			t.Errorf("%s is listed: %v", v, all)
		}
	}
}

// The data directory can stand in the file, and the command line and the environment win
// over it.
func TestDataDirInFile(t *testing.T) {
	here, there := filepath.Join(t.TempDir(), "here"), filepath.Join(t.TempDir(), "there")
	conf := filepath.Join(t.TempDir(), "conf")
	put := func(text string) {
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("# where\ndata-dir = " + here + "\n")
	s := serveIt(t, "--config", conf)
	s.address(t)
	s.find(t, "(name=data-dir value="+here+" source="+conf+":2)")
	s.end(t)
	s = serveIt(t, "--config", conf, "--data-dir", there)
	s.address(t)
	s.find(t, "(name=data-dir value="+there+" source=flag)")
	s.end(t)
	t.Setenv(dataDirVar, there)
	s = serveIt(t, "--config", conf)
	s.find(t, "(name=data-dir value="+there+" source="+dataDirVar+")")
	s.address(t)
	s.end(t)
	unsetenv(t, dataDirVar)
	for text, says := range map[string]string{
		"data-dir = here\n": "conf:1: data-dir is \"here\": it must be an absolute path",
		"data-dir =\n":      "conf:1: data-dir is blank",
		"data-dri = /d\n":   "there is no setting \"data-dri\"",
	} {
		put(text)
		if r := ringfence(t, "", "serve", "--config", conf, "--listen", "127.0.0.1:0", "--admin", ""); r.code != exitUsage || !strings.Contains(r.err, says) {
			t.Errorf("%q: %+v, want %q", text, r, says)
		}
	}
}

// A setting that serve refuses is named with the variable or the line that it is from.
func TestRefusedSettingIsNamedWithItsPlace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	conf := filepath.Join(t.TempDir(), "c")
	write(t, conf, "# one\nmax-requests = 0\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct {
		env, line, says string
		code            int
	}{
		{"RINGFENCE_LOG_LEVEL=loud", "", "want debug, info, warn or error (log-level is from RINGFENCE_LOG_LEVEL)\n", exitUsage},
		{"RINGFENCE_LISTEN=0.0.0.0:0", "", "(listen is from RINGFENCE_LISTEN)\n", exitRefused},
		{"RINGFENCE_LISTEN=" + taken.Addr().String(), "", "address already in use (listen is from RINGFENCE_LISTEN)\n", exitFailed},
		{"", "--config " + conf, "--max-requests is 0: want 1 to 16777216 (max-requests is from " + conf + ":2)\n", exitUsage},
		{"", "--log-level loud", "want debug, info, warn or error\n", exitUsage},
		{"RINGFENCE_SHM_CLIENTS=2", "--shm-user-clients 3", "or 0 for the default (shm-clients is from RINGFENCE_SHM_CLIENTS)\n", exitUsage},
	} {
		args := append([]string{"serve", "--data-dir", dir, "--admin", ""}, strings.Fields(c.line)...)
		if code, said := with(t, []string{c.env}, args...); code != c.code || !strings.HasSuffix(said, c.says) || strings.Count(said, "\n") != 1 {
			t.Errorf("%s %s: exit %d, want %d: %s, want %s", c.env, c.line, code, c.code, said, c.says)
		}
	}
}

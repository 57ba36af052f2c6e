package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A setting of a long-running command has one name everywhere: --NAME on the command
// line, RINGFENCE_NAME in the environment (in capitals, with _ for -), "NAME = value"
// in the file that --config names. The command line wins over the environment, and that
// over the file. What nobody knows is refused: a misspelt limit is not a limit. Variables
// of a service called ringfence are ignored.

// configVar names the file where the command line does not; no setting in it does.
const configVar = variablePrefix + "CONFIG"

// dataDirSetting is one that every command has.
const dataDirSetting = "data-dir"

// ioSetting is another one.
const ioSetting = "io"

// dataDirFrom takes the data directory from a file of settings, where neither the command
// line nor the environment names one, and lists where it is from.
func (a *app) dataDirFrom(file string) (setting, error) {
	s := setting{Name: dataDirSetting, Value: a.dataDir, Source: "flag"}
	if a.dataDirGiven() {
		return s, nil
	}
	if v, set := a.env(dataDirVar); set {
		s.Value, s.Source = v, dataDirVar
		return s, nil
	}
	fromFile, err := readSettings(file)
	given, ok := fromFile[dataDirSetting]
	if err != nil || !ok {
		return setting{Name: dataDirSetting, Source: "default"}, err
	}
	if strings.TrimSpace(given.Value) != "" && !filepath.IsAbs(given.Value) {
		return s, usageError{fmt.Errorf("%s: data-dir is %q: it must be an absolute path", given.Source, given.Value)}
	}
	a.dataDir, a.dataDirSource = given.Value, given.Source+": data-dir"
	return given, nil
}

// setting is one of them as it was found.
type setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"` // "flag", "environment", "FILE:LINE" or "default"
}

// resolveSettings fills in the flags of cmd that were not given, and lists all with
// where they come from. Those in hidden are listed without their value.
func resolveSettings(cmd *cobra.Command, file string, environ []string, hidden ...string) ([]setting, error) {
	flags := cmd.LocalNonPersistentFlags()
	if io := cmd.InheritedFlags().Lookup(ioSetting); io != nil {
		flags.AddFlag(io)
	}
	fromFile, err := readSettings(file)
	if err != nil {
		return nil, err
	}
	fromEnv, err := variables(environ)
	if err != nil {
		return nil, err
	}
	for name, s := range fromEnv {
		if !isSetting(flags, name) && !ofService(s) {
			return nil, usageError{fmt.Errorf("%s is set, and there is no setting %q: see '%s --help'", s.Source, name, cmd.CommandPath())}
		}
	}
	for name, s := range fromFile {
		if !isSetting(flags, name) && name != dataDirSetting {
			return nil, usageError{fmt.Errorf("%s: there is no setting %q: see '%s --help'", s.Source, name, cmd.CommandPath())}
		}
	}
	var all []setting
	flags.VisitAll(func(f *pflag.Flag) {
		if !isSetting(flags, f.Name) {
			return
		}
		s := setting{Name: f.Name, Source: "default"}
		switch {
		case f.Changed:
			s.Source = "flag"
		default:
			given, ok := fromEnv[f.Name]
			if !ok {
				given, ok = fromFile[f.Name]
			}
			if !ok {
				break
			}
			if e := flags.Set(f.Name, given.Value); e != nil {
				err = errors.Join(err, usageError{fmt.Errorf("%s: %s = %q: %w", given.Source, f.Name, given.Value, meant(f, e))})
			}
			s.Source = given.Source
		}
		if s.Value = f.Value.String(); slices.Contains(hidden, f.Name) && s.Value != "" {
			s.Value = "(hidden)"
		}
		all = append(all, s)
	})
	return all, err
}

// serviceVariable is what Kubernetes, and links of Docker, put into the environment of
// everybody near a service that is called ringfence, or like it: RINGFENCE_SERVICE_HOST,
// RINGFENCE_SERVICE_PORT, RINGFENCE_PORT_4040_TCP_ADDR and so on; and RINGFENCE_PORT,
// which is a URL there.
var (
	serviceVariable = regexp.MustCompile(`^RINGFENCE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	servicePort     = regexp.MustCompile(`^RINGFENCE(_[A-Z0-9_]+)?_PORT=(tcp|udp|sctp)://`)
)

// ofService: nobody set it, and it is no misspelt setting.
func ofService(s setting) bool {
	return serviceVariable.MatchString(s.Source) || servicePort.MatchString(s.Source+"="+s.Value)
}

func isSetting(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f != nil && name != "config" && name != "help"
}

// variables are the settings in the environment.
func variables(environ []string) (map[string]setting, error) {
	found := map[string]setting{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		rest, ok := strings.CutPrefix(name, variablePrefix)
		if !ok || name == configVar || isCommonVariable(name) {
			continue
		}
		if rest != strings.ToUpper(rest) {
			return nil, usageError{fmt.Errorf("%s is set: the names of settings are in capitals there", name)}
		}
		key := strings.ReplaceAll(strings.ToLower(rest), "_", "-")
		found[key] = setting{Name: key, Value: value, Source: name}
	}
	return found, nil
}

// readSettings reads "name = value" lines; empty ones and those that begin with # say
// nothing. A value may stand in double quotes.
func readSettings(file string) (map[string]setting, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, usageError{fmt.Errorf("--config: %w", err)}
	}
	defer f.Close()
	found := map[string]setting{}
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		at := fmt.Sprintf("%s:%d", file, n)
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if name, value = strings.TrimSpace(name), strings.TrimSpace(value); !ok || name == "" {
			return nil, usageError{fmt.Errorf("%s: %q: want 'name = value'", at, line)}
		}
		if quoted := len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"'; quoted {
			value = value[1 : len(value)-1]
		}
		if before, twice := found[name]; twice {
			return nil, usageError{fmt.Errorf("%s: %q was set at %s already", at, name, before.Source)}
		}
		found[name] = setting{Name: name, Value: value, Source: at}
	}
	if err := lines.Err(); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", file, err)}
	}
	return found, nil
}

// fromWhere adds to an error about settings where they are from that the command line does
// not show: whoever reads of a flag looks for it there.
func fromWhere(err error, settings []setting) error {
	if err == nil {
		return nil
	}
	var from []string
	for _, s := range settings {
		flag := regexp.MustCompile("--" + s.Name + `\b[^-]`)
		if s.Source != "flag" && s.Source != "default" && flag.MatchString(err.Error()+" ") && !strings.Contains(err.Error(), s.Source) {
			from = append(from, fmt.Sprintf("%s is from %s", s.Name, s.Source))
		}
	}
	if from == nil {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(from, ", "))
}

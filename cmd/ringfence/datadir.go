package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ringfence/ringfence/bench"
	"golang.org/x/sys/unix"
)

// resolveDataDir finds the directory a command works on and makes sure that it
// can be used. A flag is a path as the user's shell understands it; a variable,
// which is set far from where it is used, must be absolute, or data would end up
// wherever the program happens to start. create makes the directory.
func (a *app) resolveDataDir(create bool) (string, error) {
	dir, err := a.dataDirPath()
	if err != nil {
		return "", err
	}
	if err := checkDataDir(dir, create); err != nil {
		return "", err
	}
	if why := bench.ThisHost(dir).Volatile(); why != "" {
		fmt.Fprintf(a.err, "ringfence: warning: %s: %s\n", dir, why)
	}
	return dir, nil
}

// dataDirPath is where the directory is, or would be.
func (a *app) dataDirPath() (string, error) {
	dir, from := a.dataDir, cmp.Or(a.dataDirSource, "--data-dir")
	if !a.dataDirGiven() {
		v, set := a.env(dataDirVar)
		switch {
		case !set:
			what := fmt.Sprintf("which data directory? Give --data-dir DIR, or set %s", dataDirVar)
			if !a.local {
				what += "; a server is reached with --server"
			}
			return "", usageError{errors.New(what)}
		case strings.TrimSpace(v) != "" && !filepath.IsAbs(v):
			return "", usageError{fmt.Errorf("%s is %q: it must be an absolute path", dataDirVar, v)}
		}
		dir, from = v, dataDirVar
	}
	if strings.TrimSpace(dir) == "" {
		return "", usageError{fmt.Errorf("%s is blank: name a directory", from)}
	}
	return filepath.Abs(dir)
}

// dataDirGiven: an empty --data-dir was given too, and is a mistake, not a wish
// for the variable.
func (a *app) dataDirGiven() bool { return a.dataDir != unset }

// unset is the flag's default; no path contains a NUL.
const unset = "\x00"

func checkDataDir(dir string, create bool) error {
	st, err := os.Stat(dir)
	switch {
	case err == nil && !st.IsDir():
		return usageError{fmt.Errorf("data directory %s is a file", dir)}
	case errors.Is(err, fs.ErrNotExist) && create:
		err := os.Mkdir(dir, 0o755)
		if errors.Is(err, fs.ErrNotExist) {
			return notFound{fmt.Errorf("data directory: %w: the directory that it is to be in must be there", err)}
		}
		if err != nil {
			return fmt.Errorf("data directory: %w", err)
		}
	case errors.Is(err, fs.ErrNotExist):
		return notFound{fmt.Errorf("data directory %s does not exist; 'ringfence topic create' makes one", dir)}
	case err != nil:
		return fmt.Errorf("data directory: %w", err)
	}
	if err := unix.Access(dir, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("data directory %s: no permission to read and write it: %w", dir, err)
	}
	return nil
}

// dirToOpen is resolveDataDir for an engine: a directory without data is not taken for an
// empty store, nor one with other files for a new one.
func (a *app) dirToOpen(create bool) (string, error) {
	dir, err := a.resolveDataDir(create)
	if err != nil || holdsData(dir) {
		return dir, err
	}
	if !create {
		return "", notFound{fmt.Errorf("there is no Ringfence data in %s: if it should be there, is its disk mounted? 'ringfence topic create' begins anew", dir)}
	}
	other, err := a.holdsOther(dir)
	if err != nil {
		return "", fmt.Errorf("data directory: %w", err)
	}
	if other != "" {
		return "", usageError{fmt.Errorf("there is no Ringfence data in %s, but there are other files (%s): use a directory of its own, such as %s", dir, other, filepath.Join(dir, "ringfence"))}
	}
	return dir, nil
}

// holdsData says whether there may be an engine's files in a directory; what cannot be
// looked at may be one.
func holdsData(dir string) bool {
	for _, name := range []string{"meta", "log/identity.json", "log/topics"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// holdsOther names a file in a directory that is none of an engine's; what a fresh file
// system holds does not count, nor does a place that something was mounted at for the log,
// nor what settings name: a service's certificate lies well beside its data.
func (a *app) holdsOther(dir string) (string, error) {
	files, err := os.ReadDir(dir)
	for _, f := range files {
		if name := f.Name(); name != "lost+found" && name != "log" && name[0] != '.' && !a.named(filepath.Join(dir, name)) {
			return name, nil
		}
	}
	return "", err
}

// named says whether a setting names a file.
func (a *app) named(file string) bool {
	it, err := os.Stat(file)
	return err == nil && slices.ContainsFunc(a.files, func(name string) bool {
		st, err := os.Stat(name)
		return name != "" && err == nil && os.SameFile(st, it)
	})
}

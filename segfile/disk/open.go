package disk

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/ringfence/ringfence/ring"
	"github.com/ringfence/ringfence/segfile/buddy"
)

// EngineEnv names the environment variable that stands in for Options.Engine where
// that is empty or "auto".
const EngineEnv = "RINGFENCE_IO"

// Options of Open; the zero value is production.
type Options struct {
	Engine     string // "auto", "io_uring" or "pool"; empty means what EngineEnv says, else "auto"
	ArenaBytes int    // 0 means 64 MiB; rounded up to 2 MiB
	Workers    int    // of a pool queue; 0 means 8
	OpenFiles  int    // that are only read and keep their descriptor while nobody does; 0 means a quarter of the process's limit
	RawWait    bool   // io_uring: wait without telling Go's scheduler (see ring.Options)
	TouchLater bool   // touch and register the arena while the disk is in use already; Info changes when that is done
	ReadOnly   bool   // for tools: the directory must exist, and nothing is written to see how it works
}

func (o Options) withDefaults() (Options, error) {
	if o.Engine == "" || o.Engine == "auto" {
		o.Engine = cmp.Or(os.Getenv(EngineEnv), "auto")
	}
	o.ArenaBytes, o.Workers, o.OpenFiles = cmp.Or(o.ArenaBytes, 64<<20), cmp.Or(o.Workers, 8), cmp.Or(o.OpenFiles, fileLimit()/4)
	switch {
	case o.Engine != "auto" && o.Engine != "io_uring" && o.Engine != "pool":
		return o, fmt.Errorf("%w: I/O engine %q is none of auto, io_uring, pool", ErrInvalid, o.Engine)
	case o.ArenaBytes < Block:
		return o, fmt.Errorf("%w: an arena of %d bytes", ErrInvalid, o.ArenaBytes)
	case o.OpenFiles < 1:
		return o, fmt.Errorf("%w: %d open files", ErrInvalid, o.OpenFiles)
	case o.Workers < 1 || o.Workers > MaxDepth:
		return o, fmt.Errorf("%w: %d workers", ErrInvalid, o.Workers)
	}
	return o, nil
}

// Open makes a Disk of a directory, which it creates where it is missing. It finds
// out how I/O works there, by a test that writes a scratch file and reads it back,
// and chooses io_uring or, where that is refused or not wanted, a pool of workers;
// Info says what came of it and why. Open takes no lock: call Lock first of all.
func Open(dir string, o Options) (Disk, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if !o.ReadOnly {
		if err := makeDir(dir); err != nil {
			return nil, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("disk: open directory: %w", err)
	}
	d := &osDisk{dir: dir, root: root, opts: o, calls: &linuxCalls{}, files: map[*osFile]bool{}, named: map[string][]*osFile{}, queues: map[Queue]bool{}}
	d.idle = sync.NewCond(&d.mu)
	d.most = o.OpenFiles
	if err := d.prepare(); err != nil {
		root.Close()
		return nil, err
	}
	if !o.ReadOnly {
		if err := d.test(); err != nil {
			d.Close()
			return nil, err
		}
	}
	if !d.touched {
		d.touching.Go(d.touch)
	}
	return d, nil
}

// makeDir makes a directory and those above it that are missing, each durable.
func makeDir(dir string) error {
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		return nil
	}
	parent := filepath.Dir(filepath.Clean(dir))
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("disk: create data directory: %w", err)
	}
	h, err := os.Open(parent)
	if err == nil {
		err = h.Sync()
		h.Close()
	}
	if err != nil {
		return fmt.Errorf("disk: make the name of %s durable: %w", dir, err)
	}
	return nil
}

// prepare learns how direct I/O works here, makes the arena and chooses the engine.
func (d *osDisk) prepare() error {
	if err := d.probe(); err != nil {
		return err
	}
	memory, err := ring.MapArena(d.opts.ArenaBytes)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	d.memory, d.arena = memory, buddy.New(memory.Bytes())
	if !d.opts.TouchLater || memory.Touched() {
		err = d.touchAll()
	}
	if err == nil {
		err = d.choose()
	}
	if err != nil {
		memory.Close()
	}
	return err
}

// touchAll touches the arena and notes what it is like. It is not used yet, or mu is
// held.
func (d *osDisk) touchAll() error {
	if err := d.memory.Touch(d.closing.Load); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	d.touched, d.info.HugePages = true, d.memory.HugePages()
	if !d.info.HugePages {
		d.warn("I/O memory lies on 4 KiB pages, which costs speed from 64 KiB writes up: reserve 2 MiB pages (vm.nr_hugepages) or allow transparent ones")
	}
	return nil
}

// touch touches the arena while the disk is in use, and then registers it with the
// rings that there are.
func (d *osDisk) touch() {
	err := d.memory.Touch(d.closing.Load)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if err == nil {
		err = d.touchAll() // it is touched: this takes no time
	}
	registered := false
	for q := range d.queues {
		if u, ok := q.(*ringQueue); ok && err == nil {
			err = u.r.RegisterBuffer(d.arena.Bytes())
			registered = err == nil
		}
	}
	if err != nil {
		d.explain(err.Error())
	}
	d.info.Registered = registered
}

func (d *osDisk) warn(text string) { d.info.Warnings = append(d.info.Warnings, text) }

// explain adds to the reason why something is not as one might expect.
func (d *osDisk) explain(reason string) {
	if d.info.Reason != "" {
		reason = d.info.Reason + "; " + reason
	}
	d.info.Reason = reason
}

// choose settles the engine. A trial ring tells whether the arena can be registered.
func (d *osDisk) choose() error {
	if d.opts.Engine == "pool" {
		d.info.Engine = "pool"
		d.explain("the pool was asked for")
		return nil
	}
	reason := ""
	if report := ring.Probe(); report.Usable {
		r, err := d.openRing(8)
		if err == nil {
			d.info.Engine, d.info.Registered = "io_uring", r.Info().Registered
			if why := r.Info().Reason; why != "" {
				d.explain(why)
			}
			return r.Close()
		}
		reason = err.Error()
	} else {
		reason = report.Reason
	}
	if d.opts.Engine == "io_uring" {
		return fmt.Errorf("disk: io_uring was asked for and cannot be used here (the engines auto and pool can): %s", reason)
	}
	d.info.Engine = "pool"
	d.explain(reason)
	return nil
}

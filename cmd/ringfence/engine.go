package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ringfence/ringfence/engine"
)

// withEngine opens the data directory, calls f and closes it. What f produced is
// only safe when Close says so too, so its error counts.
func (a *app) withEngine(ctx context.Context, create bool, f func(ctx context.Context, e *engine.Engine) error) error {
	return a.withEngineOr(ctx, create, "stop that process or, if it is 'ringfence serve', reach it with --server", f)
}

// withEngineOr is withEngine with what to do while another process has the directory open.
func (a *app) withEngineOr(ctx context.Context, create bool, locked string, f func(ctx context.Context, e *engine.Engine) error) (err error) {
	if err := checkIO(a.engine); err != nil {
		return err
	}
	dir, err := a.dirToOpen(create)
	if err != nil {
		return err
	}
	e, err := engine.Open(dir, engine.Options{IO: a.engine, RawWait: true})
	if errors.Is(err, engine.ErrLocked) {
		return fmt.Errorf("%w; %s", err, locked)
	}
	if err != nil {
		return err
	}
	defer func() {
		if cerr := e.Close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("closing %s: %w", dir, cerr))
		}
	}()
	return f(ctx, e)
}

func checkIO(name string) error {
	switch name {
	case "auto", "io_uring", "pool":
		return nil
	}
	return usageError{fmt.Errorf("--io is %q: want auto, io_uring or pool", name)}
}

// missingTopic says what to do about a topic that is not there, in place of what the
// engine says to a program. create is another way to make it, or "".
func missingTopic(name, create string, err error) error {
	if errors.Is(err, engine.ErrNoSuchTopic) {
		return notFound{fmt.Errorf("there is no topic %q: create it with 'ringfence topic create %s'%s", name, name, create)}
	}
	return err
}

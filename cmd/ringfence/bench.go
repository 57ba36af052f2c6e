package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/ringfence/ringfence/bench"
	"github.com/spf13/cobra"
)

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "Measure the engine on this machine, beside what the device gives without it"}
	cmd.AddCommand(a.benchAppendCommand(), a.benchTCPCommand(), a.benchShmCommand())
	return cmd
}

const childReady = "ready"

// benchChildCommand fills a directory and writes on until it is killed. It is
// hidden: only the suite runs it.
func (a *app) benchChildCommand() *cobra.Command {
	var shape bench.Reopen
	cmd := &cobra.Command{
		Use:    "bench-child",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			go exitWithParent(a.in)
			dir, err := a.resolveDataDir(true)
			if err != nil {
				return err
			}
			return bench.FillForReopen(cmd.Context(), dir, a.engine, shape, func() error {
				_, err := fmt.Fprintln(a.out, childReady)
				return err
			})
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&shape.Sealed, "sealed", 0, "")
	fl.Int64Var(&shape.SealedBytes, "sealed-bytes", 0, "")
	fl.IntVar(&shape.Open, "open", 0, "")
	fl.Int64Var(&shape.OpenBytes, "open-bytes", 0, "")
	return cmd
}

// benchServeCommand serves what the suite measures apart from its clients. It is hidden:
// only the suite runs it.
func (a *app) benchServeCommand() *cobra.Command {
	var segment, retain int64
	var v bench.Service
	var nothing bool
	cmd := &cobra.Command{
		Use:    "bench-serve",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := bench.ServantOptions(segment, retain)
			o.IO = a.engine
			if v.Sink == 0 && !nothing {
				var err error
				if v.Dir, err = a.resolveDataDir(true); err != nil {
					return err
				}
			}
			return bench.Serve(cmd.Context(), v, o, a.in, a.out)
		},
	}
	fl := cmd.Flags()
	fl.Int64Var(&segment, "segment", 0, "")
	fl.Int64Var(&retain, "retain", 0, "")
	fl.IntVar(&v.Sink, "sink", 0, "")
	fl.StringVar(&v.Over, "over", bench.OverTCP, "")
	fl.BoolVar(&nothing, "store-nothing", false, "")
	return cmd
}

// servant is the command of such a process.
func (a *app) servant(ctx context.Context, v bench.Service, segment, retain int64) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{"bench-serve", "--io", a.engine, fmt.Sprintf("--segment=%d", segment), fmt.Sprintf("--retain=%d", retain), fmt.Sprintf("--sink=%d", v.Sink), "--over", v.Over}
	if v.Dir != "" {
		args = append(args, "--data-dir", v.Dir)
	} else {
		args = append(args, "--store-nothing")
	}
	return exec.CommandContext(ctx, self, args...), nil
}

// fillAndKill runs such a child and kills it when it is ready.
func (a *app) fillAndKill(ctx context.Context, dir string, shape bench.Reopen) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.CommandContext(ctx, self, "bench-child", "--data-dir", dir, "--io", a.engine,
		fmt.Sprintf("--sealed=%d", shape.Sealed), fmt.Sprintf("--sealed-bytes=%d", shape.SealedBytes),
		fmt.Sprintf("--open=%d", shape.Open), fmt.Sprintf("--open-bytes=%d", shape.OpenBytes))
	var stderr strings.Builder
	child.Stderr = &stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		return err
	}
	defer stdin.Close()
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	ready := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == childReady {
			ready = true
			if err := child.Process.Kill(); err != nil {
				return errors.Join(err, child.Wait())
			}
		}
	}
	err = child.Wait()
	if !ready || !signaledError(err) {
		return fmt.Errorf("the process that fills the directory ended by itself: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

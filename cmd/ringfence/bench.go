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
	cmd.AddCommand(a.benchAppendCommand(), a.benchTCPCommand())
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
		Args:   cobra.NoArgs,
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

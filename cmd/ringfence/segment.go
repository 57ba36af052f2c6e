package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ringfence/ringfence/segfile"
	"github.com/ringfence/ringfence/segfile/disk"
	"github.com/spf13/cobra"
)

func (a *app) segmentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "segment",
		Short: "Look into segment files",
		Long: `Look into segment files, DATA_DIR/log/topics/TOPIC/RANGE-SEGMENT.seg. These commands
read a file as it lies there and need no engine; a program that has the directory
open does not stop them.`,
	}
	cmd.AddCommand(a.segmentInspectCommand(), a.segmentVerifyCommand(), a.segmentDumpCommand(), a.segmentAcceptLossCommand())
	return cmd
}

// withSegment opens the tree a segment file lies in and calls f with its name there.
func (a *app) withSegment(file string, readOnly bool, f func(d disk.Disk, name string) error) (err error) {
	root, name, err := splitSegmentPath(file)
	if err != nil {
		return err
	}
	d, err := disk.Open(root, disk.Options{Engine: "pool", ArenaBytes: 4 << 20, ReadOnly: readOnly})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return f(d, name)
}

// splitSegmentPath cuts a path into the tree's root and the file's name in it,
// topics/TOPIC/RANGE-SEGMENT.seg.
func splitSegmentPath(file string) (root, name string, err error) {
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", "", notFound{err}
	case err != nil:
		return "", "", err
	case st.IsDir():
		return "", "", usageError{fmt.Errorf("%s is a directory; give a segment file", file)}
	}
	if root, name, ok := segmentPath(file); ok {
		return root, name, nil
	}
	return "", "", misplaced(file)
}

// segmentPath is splitSegmentPath by the name alone.
func segmentPath(file string) (root, name string, ok bool) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", "", false
	}
	parts := strings.Split(abs, "/")
	if len(parts) < 4 {
		return "", "", false
	}
	name = strings.Join(parts[len(parts)-3:], "/")
	_, ok = segfile.ParseName(name)
	return strings.Join(parts[:len(parts)-3], "/") + "/", name, ok
}

// misplaced says how a file can be looked at that is not where a segment's is: its
// name is part of what is checked.
func misplaced(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	head := make([]byte, segfile.HeaderSize)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: %w", file, err)
	}
	m, ok := segfile.Identify(head[:n])
	if !ok {
		return fmt.Errorf("%w: a segment file is DATA_DIR/log/topics/TOPIC/RANGE-SEGMENT.seg, and %s does not begin like one", segfile.ErrForeign, file)
	}
	name := segfile.Name(m.ID)
	return fmt.Errorf("%w: %s is a copy of segment %d of range %d of topic %s; it can be examined under its own name, in any directory: mkdir -p /tmp/x/%s && cp %s /tmp/x/%s",
		segfile.ErrForeign, file, m.ID.Seq, m.ID.Range.Seq, m.Topic, path.Dir(name), file, name)
}

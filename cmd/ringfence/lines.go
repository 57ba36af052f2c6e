package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// lineReader cuts a stream into lines at newlines, which are not part of a line.
// Everything else is kept, carriage returns too; a last line needs no newline.
type lineReader struct {
	r     *bufio.Reader
	limit int // longest line
	n     int64
	read  int64 // bytes taken, newlines included
	long  []byte

	skipLong bool // leave longer lines out instead of failing
}

func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 256<<10), limit: limit}
}

// next returns the next line, which is valid until the call after, or io.EOF.
func (l *lineReader) next() ([]byte, error) {
	for {
		line, long, err := l.scan()
		if err != nil {
			return nil, err
		}
		l.n++
		if !long {
			return line, nil
		}
		if !l.skipLong {
			return nil, fmt.Errorf("line %d is longer than %s; a larger --batch takes larger records", l.n, bytesText(l.limit))
		}
	}
}

// scan reads one line, and says whether it is longer than the limit; then only its
// beginning is returned.
func (l *lineReader) scan() (line []byte, long bool, err error) {
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.read += int64(len(part))
		full := errors.Is(err, bufio.ErrBufferFull)
		end := errors.Is(err, io.EOF)
		if err == nil {
			part = part[:len(part)-1]
		} else if !full && !end {
			return nil, false, fmt.Errorf("reading line %d: %w", l.n+1, err)
		}
		if end && len(part)+len(l.long) == 0 && !long {
			return nil, false, io.EOF
		}
		if long = long || len(l.long)+len(part) > l.limit; !long && (full || len(l.long) > 0) {
			l.long = append(l.long, part...)
			part = l.long
		}
		if !full {
			return part, long, nil
		}
	}
}

// interruptible reads from r until ctx ends, also while r has nothing: an idle
// pipe must not keep the command from ending.
type interruptible struct {
	ctx  context.Context
	ask  chan struct{}
	got  chan chunk
	rest chunk
}

type chunk struct {
	bytes []byte
	err   error
}

func newInterruptible(ctx context.Context, r io.Reader) *interruptible {
	i := &interruptible{ctx: ctx, ask: make(chan struct{}), got: make(chan chunk, 1)}
	go func() {
		buf := make([]byte, 256<<10)
		for range i.ask {
			n, err := r.Read(buf)
			i.got <- chunk{buf[:n], err}
		}
	}()
	return i
}

func (i *interruptible) Read(p []byte) (int, error) {
	if len(i.rest.bytes) == 0 && i.rest.err == nil {
		if err := i.ctx.Err(); err != nil {
			return 0, err
		}
		i.ask <- struct{}{}
		select {
		case i.rest = <-i.got:
		case <-i.ctx.Done():
			i.rest.err = i.ctx.Err()
		}
	}
	n := copy(p, i.rest.bytes)
	if i.rest.bytes = i.rest.bytes[n:]; len(i.rest.bytes) > 0 {
		return n, nil
	}
	err := i.rest.err
	if err != nil {
		i.rest.bytes = nil
	}
	return n, err
}

// end lets the goroutine go as soon as a read that is under way returns.
func (i *interruptible) end() { close(i.ask) }

// openInput opens a file, or standard input for "" and "-", and tells its size, 0
// when it is not known.
func (a *app) openInput(ctx context.Context, file string) (io.ReadCloser, int64, error) {
	if file == "" || file == "-" {
		return io.NopCloser(a.in), 0, nil
	}
	f, err := openFile(ctx, file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, notFound{err}
	}
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case st.IsDir():
		err = usageError{fmt.Errorf("%s is a directory; give a file of lines", file)}
	case st.Mode().IsRegular():
		return f, st.Size(), nil
	default:
		return f, 0, nil // a pipe or a device
	}
	f.Close()
	return nil, 0, err
}

// openFile is os.Open that ends with ctx: a named pipe opens when its writer comes.
func openFile(ctx context.Context, file string) (*os.File, error) {
	var f *os.File
	done := make(chan error, 1)
	go func() {
		var err error
		f, err = os.Open(file)
		done <- err
	}()
	select {
	case err := <-done:
		return f, err
	case <-ctx.Done():
		return nil, ctx.Err() // the process is about to end
	}
}

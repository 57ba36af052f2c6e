package main

import (
	"bufio"
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

// openInput opens a file, or standard input for "" and "-", and tells its size, 0
// when it is not known.
func (a *app) openInput(file string) (io.ReadCloser, int64, error) {
	if file == "" || file == "-" {
		return io.NopCloser(a.in), 0, nil
	}
	f, err := os.Open(file)
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
		err = fmt.Errorf("%s is a directory; give a file of lines", file)
	case st.Mode().IsRegular():
		return f, st.Size(), nil
	default:
		return f, 0, nil // a pipe or a device
	}
	f.Close()
	return nil, 0, err
}

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
}

func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 256<<10), limit: limit}
}

// next returns the next line, which is valid until the call after, or io.EOF.
func (l *lineReader) next() ([]byte, error) {
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.read += int64(len(part))
		switch {
		case err == nil:
			l.n++
			return l.line(part[:len(part)-1])
		case errors.Is(err, bufio.ErrBufferFull):
			if len(l.long)+len(part) > l.limit {
				return nil, l.tooLong()
			}
			l.long = append(l.long, part...)
		case errors.Is(err, io.EOF):
			if len(l.long)+len(part) == 0 {
				return nil, io.EOF
			}
			l.n++
			return l.line(part)
		default:
			return nil, fmt.Errorf("reading line %d: %w", l.n+1, err)
		}
	}
}

func (l *lineReader) line(part []byte) ([]byte, error) {
	if len(l.long)+len(part) > l.limit {
		return nil, l.tooLong()
	}
	if len(l.long) == 0 {
		return part, nil
	}
	l.long = append(l.long, part...)
	return l.long, nil
}

func (l *lineReader) tooLong() error {
	return fmt.Errorf("line %d is longer than %s; a larger --batch takes larger records", l.n+1, bytesText(l.limit))
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

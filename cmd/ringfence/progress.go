package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress shows how far something long has come: a bar that redraws itself on a
// terminal, else a plain line every few seconds. Its methods may be called from
// any goroutine.
type progress struct {
	label string
	total int64 // 0 when unknown
	text  func(int64) string
	also  func() string // what else is said, if not nil
	w     io.Writer
	width int // columns of the terminal, 0 for none
	every time.Duration

	mu    sync.Mutex // guards the rest and the writing
	start time.Time  // of the first report: what came before it was no part of what is counted
	begun int64      // and how much was done then
	shown time.Time
	done  int64
	drawn bool
}

// progress starts a display of n out of total; text prints an amount.
func (a *app) progress(label string, total int64, text func(int64) string) *progress {
	p := &progress{label: label, total: total, text: text, w: a.err, every: 5 * time.Second, shown: time.Now()}
	if f, ok := a.err.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width >= 40 {
			p.width, p.every = width, 100*time.Millisecond
		}
	}
	return p
}

// set says how much is done.
func (p *progress) set(done int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report(done)
}

func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report(p.done + n)
}

func (p *progress) report(done int64) {
	p.done = done
	if p.start.IsZero() {
		p.start, p.begun = time.Now(), done
	}
	if time.Since(p.shown) >= p.every {
		p.show()
	}
}

// end removes the bar; a plain display has nothing to remove.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn && p.width > 0 {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.drawn = false
}

// note prints a line of its own above the bar.
func (p *progress) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn && p.width > 0 {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	fmt.Fprintf(p.w, format+"\n", args...)
	if p.drawn && p.width > 0 {
		p.show()
	}
}

func (p *progress) show() {
	p.shown, p.drawn = time.Now(), true
	line := p.label + ": " + p.text(p.done)
	if p.total > 0 {
		line = fmt.Sprintf("%s: %3.0f %%, %s of %s", p.label, 100*float64(min(p.done, p.total))/float64(p.total), p.text(p.done), p.text(p.total))
		if left := p.left().Round(time.Second); left > 0 {
			line += fmt.Sprintf(", %s left", left)
		}
	}
	if p.also != nil {
		line += p.also()
	}
	if p.width == 0 {
		fmt.Fprintln(p.w, line)
		return
	}
	fmt.Fprint(p.w, "\r\x1b[K"+p.bar(line))
}

// bar puts what fits of a bar before the line.
func (p *progress) bar(line string) string {
	const cells = 24
	if p.total == 0 || len(line)+cells+4 > p.width {
		return line[:min(len(line), p.width-1)]
	}
	full := int(min(p.done, p.total) * cells / p.total)
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", cells-full) + "] " + line
}

func (p *progress) left() time.Duration {
	took := time.Since(p.start)
	if p.done <= p.begun || p.done >= p.total || took < time.Second {
		return 0
	}
	return time.Duration(float64(took) * float64(p.total-p.done) / float64(p.done-p.begun))
}

package main

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Without a terminal progress is a plain line now and then, and no control codes.
func TestProgressInAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		a := &app{err: &b}
		p := a.progress("storing", 1000, countText[int64])
		for i := range int64(1000) {
			time.Sleep(20 * time.Millisecond)
			p.set(i)
		}
		p.note("half-way: %d", 1)
		p.end()
		want := "storing:  25 %, 249 of 1 000, 15s left\nstoring:  50 %, 499 of 1 000, 10s left\nstoring:  75 %, 749 of 1 000, 5s left\nstoring: 100 %, 999 of 1 000\nhalf-way: 1\n"
		if b.String() != want {
			t.Errorf("got:\n%swant:\n%s", b.String(), want)
		}
	})
}

// What comes before the first report does not count for how long the rest takes.
func TestProgressAfterPreparation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := (&app{err: &b}).progress("bench", 8000, countText[int64])
		time.Sleep(time.Minute) // files are made
		for ms := int64(0); ms <= 8000; ms += 500 {
			p.set(ms)
			time.Sleep(500 * time.Millisecond)
		}
		p.end()
		if want := "bench:   0 %, 0 of 8 000\nbench:  62 %, 5 000 of 8 000, 3s left\n"; b.String() != want {
			t.Errorf("got:\n%swant:\n%s", b.String(), want)
		}
	})
}

// On a terminal one line is drawn over and over, fits, and is gone at the end.
func TestProgressOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := (&app{err: &b}).progress("storing", 1000, countText[int64])
		p.width, p.every = 80, 100*time.Millisecond
		for i := range int64(1000) {
			time.Sleep(10 * time.Millisecond)
			p.add(1)
			if i == 500 {
				p.note("a line of its own")
			}
		}
		p.end()
		frames := strings.Split(b.String(), "\r\x1b[K")
		if len(frames) < 90 || frames[len(frames)-1] != "" {
			t.Errorf("%d frames, the last %q", len(frames), frames[len(frames)-1])
		}
		for _, f := range frames {
			for _, line := range strings.Split(f, "\n") {
				if len(line) >= 80 {
					t.Errorf("%q is too wide", line)
				}
			}
		}
		if !strings.Contains(b.String(), "[############............] storing:  50 %") || !strings.Contains(b.String(), "a line of its own\n") {
			t.Errorf("got %q", b.String())
		}
	})
}

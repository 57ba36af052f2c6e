package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// plainLog tells people at a terminal what a client has to tell: a line each, that looks like
// the other ones of the command.
type plainLog struct {
	w     io.Writer
	attrs []slog.Attr
}

func (p plainLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle puts what went wrong at the end, where errors have it.
func (p plainLog) Handle(_ context.Context, r slog.Record) error {
	var with []string
	var failed string
	add := func(attr slog.Attr) bool {
		if attr.Key == "err" {
			failed = ": " + attr.Value.String()
		} else {
			with = append(with, attr.String())
		}
		return true
	}
	for _, attr := range p.attrs {
		add(attr)
	}
	r.Attrs(add)
	warning := ""
	if r.Level >= slog.LevelWarn {
		warning = "warning: "
	}
	said := withinWords.ReplaceAllString(failed, "$1")
	_, err := fmt.Fprintf(p.w, "ringfence: %s%s (%s)%s\n", warning, strings.TrimPrefix(r.Message, "ringfence: "), strings.Join(with, " "), said)
	return err
}

func (p plainLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	p.attrs = append(p.attrs[:len(p.attrs):len(p.attrs)], attrs...)
	return p
}

// WithGroup is for names of attributes that could be taken for others: there are none.
func (p plainLog) WithGroup(string) slog.Handler { return p }

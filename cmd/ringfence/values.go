package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/pflag"
)

// wanted is what may stand in a flag of a type that is not ours: who gives "ten" is to
// read what would do, and not which function of Go could not read it.
var wanted = map[string]string{
	"int":       "a whole number",
	"int64":     "a whole number",
	"uint64":    "a whole number, 0 or more",
	"uint8":     "a whole number from 0 to 255",
	"float64":   "a number like 2 or 0.5",
	"duration":  "a time like 500ms, 30s or 1h30m",
	"bool":      "true or false",
	"uintSlice": "whole numbers, 0 or more, with commas between them",
}

// meant is what is wrong with a value that a flag does not take. Our own types say it
// themselves.
func meant(f *pflag.Flag, cause error) error {
	want, ok := wanted[f.Value.Type()]
	switch {
	case !ok:
		return cause
	case errors.Is(cause, strconv.ErrRange):
		return fmt.Errorf("want %s, and none that large", want)
	}
	return fmt.Errorf("want %s", want)
}

// flagError is an error of the command line in our words.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	return fmt.Errorf("invalid argument %q for %q: %w", bad.GetValue(), "--"+bad.GetFlag().Name, meant(bad.GetFlag(), bad.Unwrap()))
}

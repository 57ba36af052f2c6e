package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ringfence/ringfence/cp"
)

// sizeFlag is a number of bytes given as 4096, 64KiB, 1MiB or 2GiB (the "iB" may
// be left out; units are powers of 1024).
type sizeFlag int64

func (s *sizeFlag) Set(text string) error {
	n, err := parseSize(text)
	if err == nil {
		*s = sizeFlag(n)
	}
	return err
}

func (s *sizeFlag) String() string {
	if *s == 0 {
		return ""
	}
	n, unit := int64(*s), ""
	for _, u := range []string{"KiB", "MiB", "GiB"} {
		if n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return fmt.Sprintf("%d%s", n, unit)
}

func (s *sizeFlag) Type() string { return "size" }

func parseSize(text string) (int64, error) {
	bad := fmt.Errorf("size %q: want a number of bytes, or one with KiB, MiB, GiB or TiB", text)
	digits := strings.TrimRight(text, "kKmMgGtTiIbB ")
	n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
	if err != nil || n < 0 {
		return 0, bad
	}
	shift, ok := map[string]int{"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30, "t": 40, "tib": 40}[strings.ToLower(strings.TrimSpace(text[len(digits):]))]
	if !ok || n > math.MaxInt64>>shift {
		return 0, bad
	}
	return n << shift, nil
}

// maxDays is the longest age there is.
const maxDays = cp.MaxPolicyAge / (24 * 3600_000)

// ageFlag is a duration that also knows days: 90m, 36h, 7d.
type ageFlag time.Duration

func (a *ageFlag) Set(text string) error {
	bad := fmt.Errorf("age %q: want something like 90m, 36h or 7d, up to %dd", text, maxDays)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.Atoi(days)
		if err != nil || n < 0 || n > maxDays {
			return bad
		}
		*a = ageFlag(time.Duration(n) * 24 * time.Hour)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > maxDays*24*time.Hour {
		return bad
	}
	*a = ageFlag(d)
	return nil
}

func (a *ageFlag) String() string {
	d := time.Duration(*a)
	if d == 0 {
		return ""
	}
	if d%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
	return d.String()
}

func (a *ageFlag) Type() string { return "age" }

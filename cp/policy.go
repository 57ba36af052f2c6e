package cp

import (
	"errors"
	"fmt"
)

// Setting says what a policy does about one of its fields. To inherit, to turn
// a rule off, and to set it, also to 0, are three different things.
type Setting uint8

const (
	Inherit Setting = iota // the node's own default applies
	Off                    // no rule, whatever the default
	On                     // the value applies
)

// Bound is one limit of a policy. The zero value inherits.
type Bound struct {
	Setting Setting
	N       int64 // milliseconds or bytes; valid if On
}

// Limit is a bound of n, which may be 0: a budget of nothing.
func Limit(n int64) Bound { return Bound{Setting: On, N: n} }

// Unlimited turns a bound off.
func Unlimited() Bound { return Bound{Setting: Off} }

// Get is the limit, and false where there is none.
func (b Bound) Get() (int64, bool) { return b.N, b.Setting == On }

// over is b, or the default d where b inherits.
func (b Bound) over(d Bound) Bound {
	if b.Setting == Inherit {
		return d
	}
	return b
}

// check says what is wrong with a bound that may not be under least, in a unit.
func (b Bound) check(least int64, unit string) error {
	switch {
	case b.Setting > On:
		return fmt.Errorf("has the setting %d: want a limit, off or inherit", b.Setting)
	case b.Setting != On && b.N != 0:
		return fmt.Errorf("is %s and has the value %d %s: only a limit has one", b, b.N, unit)
	case b.Setting == On && b.N < least:
		return fmt.Errorf("is %d %s: want %d or more", b.N, unit, least)
	}
	return nil
}

func (b Bound) String() string {
	switch b.Setting {
	case Inherit:
		return "inherit"
	case Off:
		return "off"
	}
	return fmt.Sprint(b.N)
}

// Spread is the node attribute that a topic's replicas spread over.
type Spread struct {
	Setting   Setting
	Attribute string // not empty if On
}

// SpreadOver spreads replicas over the values of an attribute of the nodes.
func SpreadOver(attribute string) Spread { return Spread{Setting: On, Attribute: attribute} }

func (s Spread) check() error {
	switch n := len(s.Attribute); {
	case s.Setting > On:
		return fmt.Errorf("has the setting %d: want an attribute, off or inherit", s.Setting)
	case s.Setting != On && n > 0:
		return errors.New("names an attribute and is not set")
	case s.Setting == On && (n == 0 || n > MaxName):
		return fmt.Errorf("names an attribute of %d bytes: want 1 to %d", n, MaxName)
	}
	return nil
}

// Policy is a named set of rules that topics are bound to by that name. A
// field that inherits leaves the rule to the node's defaults.
type Policy struct {
	MaxAge          Bound  // ms a sealed segment is kept after its seal
	MaxBytes        Bound  // bytes of sealed segments kept per range
	SegmentMaxAge   Bound  // ms an active segment stays open; at least [MinSegmentAge]
	SegmentMaxBytes Bound  // bytes after which an active segment rolls; at least 1
	SpreadBy        Spread // where replicas go
}

// Over is p with every field that inherits taken from the defaults d.
func (p Policy) Over(d Policy) Policy {
	p.MaxAge = p.MaxAge.over(d.MaxAge)
	p.MaxBytes = p.MaxBytes.over(d.MaxBytes)
	p.SegmentMaxAge = p.SegmentMaxAge.over(d.SegmentMaxAge)
	p.SegmentMaxBytes = p.SegmentMaxBytes.over(d.SegmentMaxBytes)
	if p.SpreadBy.Setting == Inherit {
		p.SpreadBy = d.SpreadBy
	}
	return p
}

// Validate says whether p can be defined: nil, or an [ErrInvalidPolicy] that names
// the field, its value and the limit.
func (p Policy) Validate() error {
	for _, f := range []struct {
		name string
		err  error
	}{
		{"MaxAge", p.MaxAge.check(0, "ms")},
		{"MaxBytes", p.MaxBytes.check(0, "bytes")},
		{"SegmentMaxAge", p.SegmentMaxAge.check(MinSegmentAge, "ms")},
		{"SegmentMaxBytes", p.SegmentMaxBytes.check(1, "bytes")},
		{"SpreadBy", p.SpreadBy.check()},
	} {
		if f.err != nil {
			return fmt.Errorf("%w: %s %w", ErrInvalidPolicy, f.name, f.err)
		}
	}
	return nil
}

package cp

import (
	"errors"
	"fmt"
	"math"
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

// check says what is wrong with a bound that has to be from least to most.
func (b Bound) check(least, most int64, text func(n int64) string) error {
	switch {
	case b.Setting > On:
		return fmt.Errorf("has the setting %d: want a limit, off or inherit", b.Setting)
	case b.Setting != On && b.N != 0:
		return fmt.Errorf("is %s and has the value %d: only a limit has one", b, b.N)
	case b.Setting == On && (b.N < least || b.N > most):
		return fmt.Errorf("is %s: want %s to %s, or off", text(b.N), text(least), text(most))
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
	SegmentMaxBytes Bound  // bytes after which an active segment rolls; at least [MinSegmentBytes]
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

// bounds are the limits of a policy, and what each may be. MaxAge and MaxBytes of 0 are
// budgets of nothing. Segments are less small than that: each is a file with a header, two
// producer tables and a footer, and takes some ten durable writes in its life.
var bounds = []struct {
	name        string
	of          func(*Policy) Bound
	least, most int64
	stored      int64 // metadata that is here already may have so little
	text        func(n int64) string
}{
	{"MaxAge", func(p *Policy) Bound { return p.MaxAge }, 0, MaxPolicyAge, 0, ageText},
	{"MaxBytes", func(p *Policy) Bound { return p.MaxBytes }, 0, MaxPolicyBytes, 0, bytesText},
	{"SegmentMaxAge", func(p *Policy) Bound { return p.SegmentMaxAge }, MinSegmentAge, MaxPolicyAge, MinSegmentAge, ageText},
	{"SegmentMaxBytes", func(p *Policy) Bound { return p.SegmentMaxBytes }, MinSegmentBytes, MaxPolicyBytes, 1, bytesText},
}

// Validate says whether p can be defined: nil, or an [ErrInvalidPolicy] that names
// the field, its value and the limits.
func (p Policy) Validate() error { return p.check(false) }

// check is Validate. What was accepted once stays: a stored policy, and a command in the
// log that made it, may have values that an earlier version allowed.
func (p Policy) check(stored bool) error {
	for i := range bounds {
		f := &bounds[i]
		least, most := f.least, f.most
		if stored {
			least, most = f.stored, math.MaxInt64
		}
		if err := f.of(&p).check(least, most, f.text); err != nil {
			return fmt.Errorf("%w: %s %w", ErrInvalidPolicy, f.name, err)
		}
	}
	if err := p.SpreadBy.check(); err != nil {
		return fmt.Errorf("%w: SpreadBy %w", ErrInvalidPolicy, err)
	}
	return nil
}

// ageText is a number of milliseconds, and what that is in days or minutes.
func ageText(n int64) string {
	const minute, day = 60_000, 24 * 60 * 60_000
	switch {
	case n != 0 && n%day == 0:
		return fmt.Sprintf("%d ms (%dd)", n, n/day)
	case n != 0 && n%minute == 0:
		return fmt.Sprintf("%d ms (%dm)", n, n/minute)
	}
	return fmt.Sprintf("%d ms", n)
}

// bytesText is a number of bytes, and what that is in MiB or TiB.
func bytesText(n int64) string {
	switch {
	case n != 0 && n%(1<<40) == 0:
		return fmt.Sprintf("%d bytes (%d TiB)", n, n>>40)
	case n != 0 && n%(1<<20) == 0:
		return fmt.Sprintf("%d bytes (%d MiB)", n, n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

package cp

import "fmt"

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

func (b Bound) valid(floor int64) bool {
	if b.Setting == On {
		return b.N >= floor
	}
	return b.Setting <= On && b.N == 0
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

func (s Spread) valid() bool {
	if s.Setting == On {
		return s.Attribute != "" && len(s.Attribute) <= MaxName
	}
	return s.Setting <= On && s.Attribute == ""
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

// Validate says whether p can be defined: an [ErrInvalidPolicy] that names the
// field, or nil.
func (p Policy) Validate() error {
	switch {
	case !p.MaxAge.valid(0):
		return fmt.Errorf("%w: MaxAge is %v, want 0 or more", ErrInvalidPolicy, p.MaxAge)
	case !p.MaxBytes.valid(0):
		return fmt.Errorf("%w: MaxBytes is %v, want 0 or more", ErrInvalidPolicy, p.MaxBytes)
	case !p.SegmentMaxAge.valid(MinSegmentAge):
		return fmt.Errorf("%w: SegmentMaxAge is %v, want %d ms or more", ErrInvalidPolicy, p.SegmentMaxAge, MinSegmentAge)
	case !p.SegmentMaxBytes.valid(1):
		return fmt.Errorf("%w: SegmentMaxBytes is %v, want 1 or more", ErrInvalidPolicy, p.SegmentMaxBytes)
	case !p.SpreadBy.valid():
		return fmt.Errorf("%w: SpreadBy has no attribute of 1 to %d bytes", ErrInvalidPolicy, MaxName)
	}
	return nil
}

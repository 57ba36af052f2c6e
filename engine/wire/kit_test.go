package wire

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"time"
	"unicode/utf8"
)

// kindOfMessage is one of the messages that frames carry.
type kindOfMessage struct {
	key   Key
	flags uint16
	table *table
}

func (k kindOfMessage) String() string {
	switch k.flags {
	case 0:
		return k.key.String() + ".request"
	case FlagReply:
		return k.key.String() + ".reply"
	case FlagReply | FlagPush:
		return k.key.String() + ".push"
	}
	return k.key.String() + ".failed"
}

// everyMessage lists all that there are, a failure for each key.
func everyMessage() (all []kindOfMessage) {
	for k := range exchanges {
		key := Key(k)
		if !key.Known() {
			continue
		}
		for _, flags := range []uint16{0, FlagReply, FlagReply | FlagFailed, FlagReply | FlagPush} {
			if t := exchanges[k].table(flags); t != nil {
				all = append(all, kindOfMessage{key, flags, t})
			}
		}
	}
	return all
}

// sample is a message of a table with something in every field.
func sample(t *table) Message {
	if t == &tableError {
		return &Error{Code: CodeOverloaded, Detail: "détail", RetryAfter: 1500 * time.Millisecond}
	}
	m := blank(t)
	fill(reflect.ValueOf(m).Elem(), 1)
	if hello, ok := m.(*Hello); ok {
		hello.Magic, hello.MinVersion, hello.MaxVersion = Magic, Version, Version
	}
	return m
}

// blank is a message of a table with nothing in it.
func blank(t *table) Message { return t.unpack(emptyMessage()).(Message) }

// emptyMessage is a table without fields.
func emptyMessage() []byte { return []byte{8, 0, 0, 0, 4, 0, 4, 0, 4, 0, 0, 0} }

// fill makes a number n grow along the way to each field, so that fields of a table
// differ and a field that is added at its end changes no other.
func fill(v reflect.Value, n int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), 10*n+i)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), 10*n+i)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d-é", n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(int64(-n) << 44)
	case reflect.Uint64:
		v.SetUint(uint64(n)<<50 + 7) // beyond what a float holds
	case reflect.Uint32:
		v.SetUint(uint64(n)<<8 + 5)
	case reflect.Uint16:
		v.SetUint(uint64(n)<<4 + 3)
	case reflect.Uint8:
		v.SetUint(uint64(n) % 251)
	default:
		panic("a type that no message has: " + v.Type().String())
	}
}

// random is a message of a table with anything in its fields.
func random(t *table, rng *rand.Rand) Message {
	if t == &tableError {
		return &Error{
			Code: Code(rng.Uint32()), Detail: randomText(rng),
			RetryAfter: time.Duration(rng.Uint32()) * time.Millisecond,
		}
	}
	m := blank(t)
	scatter(reflect.ValueOf(m).Elem(), rng)
	return m
}

func scatter(v reflect.Value, rng *rand.Rand) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Slice || rng.IntN(4) != 0 { // or leave out what is zero
				scatter(f, rng)
			}
		}
	case reflect.Pointer:
		scatter(v.Elem(), rng)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), rng.IntN(4), 4))
		for i := range v.Len() {
			if e := v.Index(i); e.Kind() == reflect.Pointer {
				e.Set(reflect.New(e.Type().Elem()))
				complete(e.Interface())
			}
			scatter(v.Index(i), rng)
		}
	case reflect.String:
		v.SetString(randomText(rng))
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int64:
		v.SetInt(int64(rng.Uint64()) >> rng.IntN(64))
	default:
		v.SetUint(rng.Uint64() >> (64 - v.Type().Bits()) >> rng.IntN(v.Type().Bits()))
	}
}

func randomText(rng *rand.Rand) string {
	text := make([]rune, rng.IntN(20))
	for i := range text {
		text[i] = [...]rune{'a', 'z', 0, 'é', '漢', '𝄞', utf8.RuneError}[rng.IntN(7)]
	}
	return string(text)
}

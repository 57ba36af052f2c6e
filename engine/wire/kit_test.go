package wire

import (
	"fmt"
	"reflect"
	"time"
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

// sample is a message of a table with something in every field, no two fields alike.
func sample(t *table) Message {
	if t == &tableError {
		return &Error{Code: CodeOverloaded, Detail: "détail", RetryAfter: 1500 * time.Millisecond}
	}
	// An empty table unpacks to a message of the right type.
	m := t.unpack(emptyMessage())
	n := 0
	fill(reflect.ValueOf(m).Elem(), &n)
	return m.(Message)
}

// emptyMessage is a table without fields.
func emptyMessage() []byte { return []byte{8, 0, 0, 0, 4, 0, 4, 0, 4, 0, 0, 0} }

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d-é", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(int64(-*n) << 32)
	case reflect.Uint64:
		v.SetUint(uint64(*n)<<40 + 7)
	case reflect.Uint32:
		v.SetUint(uint64(*n)<<20 + 5)
	case reflect.Uint16:
		v.SetUint(uint64(*n)<<8 + 3)
	case reflect.Uint8:
		v.SetUint(uint64(*n) + 200)
	default:
		panic("a type that no message has: " + v.Type().String())
	}
}

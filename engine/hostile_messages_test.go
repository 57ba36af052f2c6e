package engine

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/ringfence/cp"
	"github.com/ringfence/ringfence/engine/api"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/wire"
)

// nasty fills messages with what the server knows, and with what nobody would send.
type nasty struct {
	rng *rand.Rand
}

func (n *nasty) fill(v reflect.Value, name string) {
	switch v.Kind() {
	case reflect.Pointer:
		if n.rng.IntN(8) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			n.fill(v.Elem(), name)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				n.fill(v.Field(i), v.Type().Field(i).Name)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), []int{0, 1, 1, 2, 3, 20}[n.rng.IntN(6)], 20))
		for i := range v.Len() {
			if n.fill(v.Index(i), name); v.Index(i).Kind() == reflect.Pointer && v.Index(i).IsNil() {
				v.Index(i).Set(reflect.New(v.Index(i).Type().Elem())) // the encoder's own caller makes no holes
			}
		}
	case reflect.String:
		v.SetString(n.text(name))
	case reflect.Bool:
		v.SetBool(n.rng.IntN(2) == 0)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(n.rng.NormFloat64() * 1e10)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
		v.SetInt(int64(n.number(name)))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(n.number(name))
	}
}

func (n *nasty) text(name string) string {
	known := []string{"t", "t", "u", "g", "new", "m", "password", "default"}
	odd := []string{"", "\x00", "é", "../../etc", "t*", "*", strings.Repeat("x", 255), strings.Repeat("y", 256), strings.Repeat("z", 5000), "\xff\xfe", "root\n"}
	switch n.rng.IntN(12) {
	case 0:
		return odd[n.rng.IntN(len(odd))]
	case 1, 2, 3:
	default:
		return map[string]string{"Topic": "t", "Topics": "t", "Group": "g", "User": "u", "Name": "u", "Policy": "new", "Member": "m", "Password": rightSecret, "Pattern": "*"}[name]
	}
	return known[n.rng.IntN(len(known))]
}

func (n *nasty) number(name string) uint64 {
	if name == "WaitMs" { // or the next request waits for it
		return uint64(n.rng.IntN(3))
	}
	odd := []uint64{1 << 7, 1<<8 - 1, 1 << 15, 1<<16 - 1, 1 << 20, 1 << 24, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1<<64 - 1<<20}
	if n.rng.IntN(10) == 0 {
		return odd[n.rng.IntN(len(odd))]
	}
	return uint64(n.rng.IntN(5))
}

// A client that may do everything asks for whatever there is, in messages that are none and
// in ones that are well made and mean nothing. The server answers, goes on for others, and
// what was stored is there, also after the next start. (K01)
func TestK01MessagesWithoutMeaning(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir, Options{SegmentBytes: 4 << 20})
	newTopic(t, e, "keep")
	want := fillSegment(t, e, "keep", "value")
	must(t, e.PutUser(within(t), "admin", rightSecret, UserOptions{Grants: []Grant{cp.Administrator}}))
	so := server.Options{}
	e.Authenticator(AuthOptions{}).Guard(&so)
	s := shareMemory(t, e, so)
	newTopic(t, e, "t")
	must(t, e.PutUser(within(t), "u", rightSecret, UserOptions{}))
	kinds := requestKinds(t)
	n := &nasty{rand.New(rand.NewPCG(1, 21))}
	done, refused := map[wire.Key]int{}, map[wire.Key]int{}
	n.storm(t, s.path, kinds, done, refused)
	for key := range kinds {
		few := []wire.Key{wire.KeyCredit, wire.KeyPing, wire.KeyAttach, wire.KeySubscribe}
		if refused[key] == 0 && !slices.Contains(few, key) {
			t.Errorf("%v was never refused", key)
		}
	}
	for _, key := range []wire.Key{wire.KeyCreateTopic, wire.KeyDescribeTopic, wire.KeyOpenConsumer, wire.KeyFetch, wire.KeyJoinGroup, wire.KeyPutUser, wire.KeyListUsers, wire.KeySetQuota} {
		if done[key] == 0 {
			t.Errorf("%v was never answered: %v", key, done)
		}
	}
	read := func(e *Engine) {
		t.Helper()
		got, _ := drain(t, newConsumer(t, e, ConsumerOptions{Topic: "keep", From: FromStart()}))
		if !slices.Equal(values(got), want) {
			t.Errorf("%d records are read, want %d", len(got), len(want))
		}
	}
	read(e)
	s.stop(within(t))
	shut(t, e)
	read(open(t, dir, Options{}))
}

// requestKinds are the types of all requests, by key.
func requestKinds(t *testing.T) map[wire.Key]reflect.Type {
	t.Helper()
	b, err := os.ReadFile("wire/testdata/vectors.json")
	must(t, err)
	var vectors []struct {
		Key   wire.Key `json:"key"`
		Flags uint16   `json:"flags"`
		Frame string   `json:"frame"`
	}
	must(t, json.Unmarshal(b, &vectors))
	kinds := map[wire.Key]reflect.Type{}
	for _, v := range vectors {
		b, err := hex.DecodeString(v.Frame)
		must(t, err)
		if m, err := wire.Request(v.Key, b[wire.HeadSize:]); v.Flags == 0 && err == nil {
			kinds[v.Key] = reflect.TypeOf(m).Elem()
		}
	}
	delete(kinds, wire.KeyHello)
	delete(kinds, wire.KeyAuthenticate) // or nothing more is allowed
	return kinds
}

// storm sends requests over one connection. It does not wait for answers but to the last.
func (n *nasty) storm(t *testing.T, path string, kinds map[wire.Key]reflect.Type, done, refused map[wire.Key]int) {
	t.Helper()
	a := ask(t, path, "admin", rightSecret)
	defer a.nc.Close()
	keys := slices.Sorted(maps.Keys(kinds))
	requests := rounds(3000)
	var frames [][]byte
	for i := range requests {
		key := keys[n.rng.IntN(len(keys))]
		switch late := i >= requests-20; {
		case key == wire.KeySubscribe && !late: // what is asked of its consumer waits for its end
			key = wire.KeyFetch
		case key == wire.KeyAttach && !late: // frames go through memory from then on
			key = wire.KeyListMembers
		case (key == wire.KeyDeleteTopic || key == wire.KeyDeleteUser) && n.rng.IntN(20) > 0:
			key = wire.KeyDescribeTopic
		}
		m := reflect.New(kinds[key])
		n.fill(m.Elem(), "")
		a.last++
		id := a.last
		switch m := m.Interface().(type) {
		case *wire.Credit:
			id = 0 // it has no answer
		case *wire.CreateTopic:
			if i%2 == 0 {
				*m = wire.CreateTopic{Topic: "t"}
			}
		case *wire.PutUser:
			if i%2 == 0 {
				*m = wire.PutUser{User: "u", Password: []byte(rightSecret)}
			}
		case *wire.Fetch:
			if i%2 == 0 {
				*m = wire.Fetch{Consumer: uint32(n.rng.IntN(40)), MaxBytes: 1 << 20, Stored: true, InFile: true}
			}
		case *wire.OpenConsumer:
			if i%2 == 0 {
				*m = wire.OpenConsumer{Topic: []string{"t", "keep"}[n.rng.IntN(2)], From: byte(api.AtStart)}
			}
		}
		b := slices.Clone(a.enc.Frame(key, 0, id, m.Interface().(wire.Message), 0))
		if body := b[wire.HeadSize:]; n.rng.IntN(3) == 0 && key != wire.KeyCredit && len(body) > 0 {
			for range 1 + n.rng.IntN(4) {
				body[n.rng.IntN(len(body))] = byte(n.number(""))
			}
		}
		frames = append(frames, b)
	}
	a.last++
	frames = append(frames, a.enc.Frame(wire.KeyPing, 0, a.last, &wire.Ping{}, 0))
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		for _, b := range frames {
			if _, err := a.nc.Write(b); err != nil {
				t.Errorf("send: %v", err)
				return
			}
		}
	})
	for {
		must(t, a.nc.SetReadDeadline(time.Now().Add(patience)))
		h, _, err := a.read()
		if f := a.nc.File(); f != nil {
			f.Close()
		}
		switch we := (*wire.Error)(nil); {
		case errors.As(err, &we) && h.ID != 0:
			if refused[h.Key]++; we.Code == wire.CodeInternal {
				t.Errorf("%v: %v", h.Key, we)
			}
		case err != nil:
			t.Errorf("the server ends the connection: %v", err)
			a.nc.Close()
			return
		default:
			done[h.Key]++
		}
		if h.ID == a.last {
			return
		}
	}
}

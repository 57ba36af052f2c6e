package record_test

import (
	"fmt"

	"github.com/ringfence/ringfence/segfile/record"
)

// A producer builds a frame, a primary stamps it, a consumer verifies it.
func Example() {
	const producer, salt = 42, 0x5eed
	var b record.Builder
	b.Reset(make([]byte, 4096), producer)
	for i, line := range []string{"started", "listening", "stopped"} {
		r := record.Record{Key: []byte("server-1"), Value: []byte(line), Timestamp: 1_700_000_000_000}
		if err := b.Add(&r, uint64(i)+1); err != nil {
			fmt.Println(err)
			return
		}
	}
	frame, err := b.Finish(0)
	if err != nil {
		fmt.Println(err)
		return
	}
	record.Stamp(frame, 1000, 0, salt)

	batch, err := record.Verify(frame, salt, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range batch.Len() {
		fmt.Printf("%d %s: %s\n", batch.Offset(i), batch.Key(i), batch.Value(i))
	}
	// Output:
	// 1000 server-1: started
	// 1001 server-1: listening
	// 1002 server-1: stopped
}

// A record whose size is known is written to where it stays, without a copy.
func ExampleBuilder_Reserve() {
	var b record.Builder
	b.Reset(make([]byte, 4096), 42)
	_, value, err := b.Reserve(-1, 5, nil, 1_700_000_000_000)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(value, "hello")
	if err := b.Commit(1); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(b.Len(), "record in", b.Bytes(), "bytes")
	// Output: 1 record in 221 bytes
}

package bench

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func sampleResult() Result {
	return Result{
		Workload: "1024-byte records, batches of 1 MiB, 4 in flight, recycled files", Durability: "every record on stable storage before it counts",
		IO: "io_uring", HugePages: true, Registered: true, Direct: true,
		Sent: Sent{Batches: 1000, Took: 2 * time.Second, Latency: Latency{Count: 1000, Mean: time.Millisecond,
			P50: 900 * time.Microsecond, P90: 2 * time.Millisecond, P99: 5 * time.Millisecond, P999: 9 * time.Millisecond, Max: 12345678}},
		Records: 1 << 20, Bytes: 1 << 30, Flushes: 1024, FileBytes: 1100 << 20, Fences: 17, CPU: 500 * time.Millisecond, Mallocs: 1 << 20, ReadBack: "5 records, in order, up to the last",
	}
}

// A report states what was compared: durability, copies, how the disk was reached
// and how many appends failed (scenario N06).
func TestN06ReportSaysWhatWasMeasured(t *testing.T) {
	r := sampleResult()
	want := `1024-byte records, batches of 1 MiB, 4 in flight, recycled files
  durability  every record on stable storage before it counts; one copy
  I/O         io_uring, direct: true, buffers on 2 MiB pages, registered: true
  rate        524288 records/s, 536.9 MB/s of payload
  latency     p50 900µs, p90 2ms, p99 5ms, p99.9 9ms, max 12.3ms
  flushes     1024, 1126400 bytes of file and 1048576 of payload each
  CPU         0.500 s/GiB, 0.48 us/record, 1.000 allocations/record
  segments    17 closed
  errors      0
  read back   5 records, in order, up to the last
`
	if got := r.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	if !strings.Contains(ThisHost(t.TempDir()).String(), "Linux ") {
		t.Error("the host line names no kernel")
	}
}

// With failed appends there is no rate, unless somebody asks for it (N06).
func TestN06NoRateWithErrors(t *testing.T) {
	r := sampleResult()
	r.Sent.Errors, r.Sent.FirstError = 7, errors.New("disk full")
	text := r.String()
	if strings.Contains(text, "records/s") || !strings.Contains(text, "NO RESULT   7 of 1007 batches failed, first with: disk full") {
		t.Errorf("got:\n%s", text)
	}
	asJSON := func() string {
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if s := asJSON(); strings.Contains(s, "mb_per_s") || !strings.Contains(s, `"errors":7`) || !strings.Contains(s, `"invalid":`) {
		t.Errorf("JSON of a run with errors: %s", s)
	}
	r.allowErrors = true
	if s := asJSON(); !strings.Contains(s, `"mb_per_s":536.8`) || !strings.Contains(s, `"errors":7`) {
		t.Errorf("JSON when errors are allowed: %s", s)
	}
	behind := sampleResult()
	behind.Sent.Behind = true
	if ok, why := behind.Valid(); ok || !strings.Contains(why, "rate was not reached") {
		t.Errorf("a run that fell behind: %v, %s", ok, why)
	}
	nothing := sampleResult()
	nothing.Records = 0
	if ok, _ := nothing.Valid(); ok {
		t.Error("a run without records is a result")
	}
}

// The read-back sees what it is there to see.
func TestReadBackBites(t *testing.T) {
	key := func(worker, seq byte) []byte {
		return []byte{0, 0, 0, 0, 0, 0, 0, worker, 0, 0, 0, 0, 0, 0, 0, seq}
	}
	for name, tt := range map[string]struct {
		keys [][]byte
		ok   bool
	}{
		"in order":                {[][]byte{key(0, 1), key(1, 1), key(0, 2), key(1, 2)}, true},
		"retention took a part":   {[][]byte{key(0, 7), key(0, 8)}, true},
		"one missing":             {[][]byte{key(0, 1), key(0, 3)}, false},
		"one twice":               {[][]byte{key(0, 1), key(0, 1)}, false},
		"out of order":            {[][]byte{key(0, 2), key(0, 1)}, false},
		"of nobody":               {[][]byte{key(9, 1)}, false},
		"not one of these at all": {[][]byte{[]byte("key")}, false},
	} {
		last := make([]uint64, 2)
		var err error
		for _, k := range tt.keys {
			if err = checkNext(last, k); err != nil {
				break
			}
		}
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOutcomes(t *testing.T) {
	samples := []Sample{{Engine: 90, Floor: 100, Ratio: 0.9, Notes: map[string]float64{"x": 1}}, {Engine: 99, Floor: 100, Ratio: 0.99, Notes: map[string]float64{"x": 3}}, {Engine: 97, Floor: 100, Ratio: 0.97, Notes: map[string]float64{"x": 2}}}
	o := Row{ID: "r", Unit: "MB/s", Want: 0.95}.outcome(samples, nil)
	if !o.Reached || o.Median.Ratio != 0.97 || o.Median.Engine != 97 || o.Median.Notes["x"] != 2 || o.Runs != 3 {
		t.Errorf("outcome %+v", o)
	}
	if o := (Row{Want: 0.95, Less: true}).outcome(samples, nil); o.Reached {
		t.Error("0.97 was taken for at most 0.95")
	}
	if o := (Row{}).outcome(nil, errors.New("no disk")); o.Reached || !strings.Contains(o.line(), "no disk") {
		t.Errorf("a failed row: %s", o.line())
	}
	if o := (Row{}).outcome(nil, nil); o.Error == "" {
		t.Error("a row without runs is a result")
	}
	if m := median([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Errorf("median %g", m)
	}
	for v, want := range map[float64]string{1234.5: "1234", 12.34: "12.3", 1.234: "1.23", 0.01234: "0.012", 0: "0.000"} {
		if got := Figure(v); got != want {
			t.Errorf("%g prints as %s, want %s", v, got, want)
		}
	}
}

// Every row has a name of its own and a floor, and an unknown one is refused.
func TestRowsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rows() {
		if seen[r.ID] || r.Name == "" || r.Against == "" || r.Unit == "" || r.Want <= 0 || r.run == nil {
			t.Errorf("row %+v", r)
		}
		seen[r.ID] = true
	}
	if _, err := (&Suite{Rows: []string{"nonsense"}}).begin(); err == nil || !strings.Contains(err.Error(), "1m, 256k") {
		t.Errorf("an unknown row: %v", err)
	}
}

func TestCosts(t *testing.T) {
	c, err := MeasureCosts(1024, 256<<10)
	if err != nil {
		t.Fatal(err)
	}
	if c.Hash <= 0 || c.Sum() < c.Hash || c.Sum() > 60 {
		t.Errorf("costs %+v", c)
	}
}

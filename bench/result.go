package bench

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

type counter = atomic.Int64

// Result is one run of a workload.
type Result struct {
	Workload   string
	Durability string
	IO         string
	HugePages  bool
	Registered bool
	Direct     bool
	Sent       Sent
	Records    int64 // acknowledged
	Bytes      int64 // of their keys and values
	Rolls      int64
	Flushes    uint64
	FileBytes  uint64 // written to segment files, padding included
	Fences     int64
	CPU        time.Duration // of the whole process, the generator included
	Mallocs    uint64
	ReadBack   string // what reading the records back said; "" when it was not done

	allowErrors bool
}

// Valid says whether the run's rates mean anything, and why not.
func (r *Result) Valid() (bool, string) {
	switch {
	case r.Sent.Errors > 0 && !r.allowErrors:
		return false, fmt.Sprintf("%d of %d batches failed, first with: %v", r.Sent.Errors, r.Sent.Errors+r.Sent.Batches, r.Sent.FirstError)
	case r.Records == 0:
		return false, "nothing was acknowledged"
	case r.Sent.Behind:
		return false, fmt.Sprintf("the wanted rate was not reached: batches were up to %s late", roundTime(r.Sent.LateBy))
	}
	return true, ""
}

// MBps is payload megabytes a second.
func (r *Result) MBps() float64 { return float64(r.Bytes) / 1e6 / r.Sent.Took.Seconds() }

// RecordsPerS is acknowledged records a second.
func (r *Result) RecordsPerS() float64 { return float64(r.Records) / r.Sent.Took.Seconds() }

// CPUPerGiB is seconds of CPU for a GiB of payload.
func (r *Result) CPUPerGiB() float64 { return r.CPU.Seconds() / (float64(r.Bytes) / (1 << 30)) }

// MallocsPerRecord counts heap allocations of the whole process.
func (r *Result) MallocsPerRecord() float64 { return float64(r.Mallocs) / float64(max(r.Records, 1)) }

// FilePerFlush and PayloadPerFlush are bytes.
func (r *Result) FilePerFlush() int64 { return int64(r.FileBytes / max(r.Flushes, 1)) }

func (r *Result) PayloadPerFlush() int64 { return r.Bytes / int64(max(r.Flushes, 1)) }

func (r *Result) pages() string {
	if r.HugePages {
		return "2 MiB pages"
	}
	return "4 KiB pages"
}

// String is the report for people.
func (r *Result) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "%s\n", r.Workload)
	line("durability", "%s; one copy", r.Durability)
	line("I/O", "%s, direct: %v, buffers on %s, registered: %v", r.IO, r.Direct, r.pages(), r.Registered)
	if ok, why := r.Valid(); !ok {
		line("NO RESULT", "%s", why)
		return b.String()
	}
	line("rate", "%.0f records/s, %.1f MB/s of payload", r.RecordsPerS(), r.MBps())
	line("latency", "%s", r.Sent.Latency)
	line("flushes", "%d, %d bytes of file and %d of payload each", r.Flushes, r.FilePerFlush(), r.PayloadPerFlush())
	line("CPU", "%.3f s/GiB, %.2f us/record, %.3f allocations/record", r.CPUPerGiB(), 1e6*r.CPU.Seconds()/float64(r.Records), r.MallocsPerRecord())
	line("segments", "%d closed", r.Fences)
	if r.Sent.LateBy > 0 {
		line("late by", "%s at worst", roundTime(r.Sent.LateBy))
	}
	line("errors", "%d", r.Sent.Errors)
	if r.ReadBack != "" {
		line("read back", "%s", r.ReadBack)
	}
	return b.String()
}

// MarshalJSON leaves the rates out where they mean nothing.
func (r Result) MarshalJSON() ([]byte, error) {
	type rates struct {
		RecordsPerS float64 `json:"records_per_s"`
		MBps        float64 `json:"mb_per_s"`
		CPUPerGiB   float64 `json:"cpu_s_per_gib"`
		Latency     Latency `json:"latency"`
	}
	out := struct {
		Workload         string  `json:"workload"`
		Durability       string  `json:"durability"`
		IO               string  `json:"io"`
		Direct           bool    `json:"direct"`
		HugePages        bool    `json:"huge_pages"`
		Registered       bool    `json:"registered"`
		Seconds          float64 `json:"seconds"`
		Records          int64   `json:"records"`
		Bytes            int64   `json:"bytes"`
		Errors           int64   `json:"errors"`
		Flushes          uint64  `json:"flushes"`
		FilePerFlush     int64   `json:"file_bytes_per_flush"`
		PayloadPerFlush  int64   `json:"payload_bytes_per_flush"`
		MallocsPerRecord float64 `json:"allocations_per_record"`
		Fences           int64   `json:"segments_closed"`
		ReadBack         string  `json:"read_back,omitempty"`
		Invalid          string  `json:"invalid,omitempty"`
		*rates
	}{Workload: r.Workload, Durability: r.Durability, IO: r.IO, Direct: r.Direct, HugePages: r.HugePages, Registered: r.Registered,
		Seconds: r.Sent.Took.Seconds(), Records: r.Records, Bytes: r.Bytes, Errors: r.Sent.Errors, Flushes: r.Flushes,
		FilePerFlush: r.FilePerFlush(), PayloadPerFlush: r.PayloadPerFlush(), MallocsPerRecord: r.MallocsPerRecord(),
		Fences: r.Fences, ReadBack: r.ReadBack}
	if ok, why := r.Valid(); ok {
		out.rates = &rates{r.RecordsPerS(), r.MBps(), r.CPUPerGiB(), r.Sent.Latency}
	} else {
		out.Invalid = why
	}
	return json.Marshal(out)
}

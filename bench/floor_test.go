package bench

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func TestLoopMeasuresEveryShape(t *testing.T) {
	scratch := newTestScratch(t)
	for _, s := range []Shape{
		{Durable: true, Block: 4096, Depth: 1, Seconds: 0.05},
		{Durable: true, Block: 64 << 10, Depth: 4, Seconds: 0.05},
		{Durable: true, Grow: true, Block: 64 << 10, Depth: 2, Seconds: 0.05},
		{Read: true, Block: 1 << 20, Depth: 2, Seconds: 0.05},
		{Durable: true, Block: 8 << 10, Depth: 1, Seconds: 0.05, Pause: time.Millisecond},
	} {
		t.Run(s.String(), func(t *testing.T) {
			f, err := Loop(t.Context(), scratch, s)
			if err != nil {
				t.Fatal(err)
			}
			checkFloor(t, f)
		})
	}
}

func TestFioMeasuresEveryShape(t *testing.T) {
	if _, err := exec.LookPath("fio"); err != nil {
		t.Skip("fio is not installed")
	}
	scratch := newTestScratch(t)
	for _, s := range []Shape{
		{Durable: true, Block: 4096, Depth: 1, Seconds: 0.2},
		{Durable: true, Grow: true, Block: 64 << 10, Depth: 2, Seconds: 0.2},
		{Read: true, Block: 64 << 10, Depth: 2, Seconds: 0.2},
		{Durable: true, Block: 8 << 10, Depth: 1, Seconds: 0.2, Pause: time.Millisecond},
	} {
		t.Run(s.String(), func(t *testing.T) {
			f, err := Fio(t.Context(), scratch, s)
			if err != nil {
				if strings.Contains(err.Error(), "io_uring") || strings.Contains(err.Error(), "Invalid argument") {
					t.Skipf("fio cannot use io_uring or direct I/O here: %v", err)
				}
				t.Fatal(err)
			}
			checkFloor(t, f)
			if !strings.Contains(f.Command, "--ioengine=io_uring") || !strings.Contains(f.Command, "--direct=1") {
				t.Errorf("command %q is not the floor that was promised", f.Command)
			}
		})
	}
}

func newTestScratch(t *testing.T) *Scratch {
	t.Helper()
	// A small written file: the test is about what is measured, not about the device.
	scratch, err := NewScratch(t.TempDir(), 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { scratch.Close() })
	return scratch
}

func checkFloor(t *testing.T, f Floor) {
	t.Helper()
	if f.MBps <= 0 || f.OpsPerS <= 0 || f.Latency.Count == 0 || f.Latency.P50 <= 0 || f.Latency.P99 < f.Latency.P50 || f.CPU < 0 {
		t.Errorf("floor without substance: %+v", f)
	}
}

func TestNoFioIsSaidPlainly(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	scratch := newTestScratch(t)
	s := Shape{Durable: true, Block: 4096, Depth: 1, Seconds: 0.02}
	if _, err := Fio(t.Context(), scratch, s); !errors.Is(err, ErrNoFio) || !strings.Contains(err.Error(), "apt-get install fio") {
		t.Errorf("got %v, want ErrNoFio with what to do", err)
	}
	f, err := Measure(t.Context(), scratch, s)
	if err != nil || !strings.HasPrefix(f.Tool, "plain Go loop") {
		t.Errorf("Measure without fio: %+v, %v", f, err)
	}
}

func TestParseFio(t *testing.T) {
	const good = `note: something
{"fio version":"fio-3.33","jobs":[{"error":0,"usr_cpu":10,"sys_cpu":15,"read":{"io_bytes":0},
"write":{"io_bytes":2147483648,"bw_bytes":1073741824,"iops":1024,"runtime":2000,"total_ios":2048,
"lat_ns":{"max":9000000,"mean":3900000.5,"percentile":{"50.000000":3800000,"90.000000":4000000,"99.000000":5000000,"99.900000":8000000}}}}]}`
	f, err := parseFio([]byte(good), Shape{Durable: true, Block: 1 << 20, Depth: 4, Seconds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if f.CPU != 0.25 { // a quarter of two seconds for two GiB
		t.Errorf("CPU %g s/GiB, want 0.25", f.CPU)
	}
	if f.Latency.P99 != 5*time.Millisecond || f.Latency.Count != 2048 || f.MBps < 1073 || f.Tool != "fio-3.33" {
		t.Errorf("got %+v", f)
	}
	for name, bad := range map[string]string{
		"empty":        "",
		"cut":          good[:200],
		"failed job":   strings.Replace(good, `"error":0`, `"error":22`, 1),
		"moved none":   strings.Replace(good, `"total_ios":2048`, `"total_ios":0`, 1),
		"no latencies": strings.Replace(good, `"50.000000":3800000,`, "", 1),
	} {
		if _, err := parseFio([]byte(bad), Shape{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := parseFio([]byte(good), Shape{Read: true}); err == nil {
		t.Error("a write's result was taken for a read's")
	}
}

func TestShapesAreChecked(t *testing.T) {
	for _, s := range []Shape{
		{}, {Block: 100, Depth: 1, Seconds: 1}, {Block: 4096, Seconds: 1}, {Block: 4096, Depth: 1},
		{Read: true, Durable: true, Block: 4096, Depth: 1, Seconds: 1}, {Block: 4096, Depth: 1, Seconds: 1e9},
	} {
		if err := s.check(); err == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}

func TestFloorObeysItsContext(t *testing.T) {
	scratch := newTestScratch(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Loop(ctx, scratch, Shape{Durable: true, Block: 4096, Depth: 1, Seconds: 500}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestScratchLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s, err := NewScratch(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeAll(t.Context(), s.dir+"/written", 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

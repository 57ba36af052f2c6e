package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// ErrNoFio says that the floor cannot be measured with fio here.
var ErrNoFio = errors.New("bench: fio is not installed; on Debian: apt-get install fio")

// Fio measures a shape with fio: the io_uring engine, direct I/O, one job,
// registered buffers and files, buffers on huge pages where they are to be had.
// The scratch file is made in dir when the shape needs one that is not there yet.
func Fio(ctx context.Context, scratch *Scratch, s Shape) (Floor, error) {
	if err := s.check(); err != nil {
		return Floor{}, err
	}
	bin, err := exec.LookPath("fio")
	if err != nil {
		return Floor{}, ErrNoFio
	}
	file, size, err := scratch.prepare(ctx, s)
	if err != nil {
		return Floor{}, err
	}
	var best error
	for _, pages := range pageChoices(s) {
		floor, err := runFio(ctx, bin, file, size, s, pages)
		if err == nil {
			return floor, nil
		}
		if ctx.Err() != nil {
			return Floor{}, ctx.Err()
		}
		best = cmp.Or(best, err)
	}
	return Floor{}, fmt.Errorf("bench: fio: %w", best)
}

func runFio(ctx context.Context, bin, file string, size int64, s Shape, pages pageChoice) (Floor, error) {
	restore, err := pages.reserve()
	if err != nil {
		return Floor{}, err
	}
	defer restore()
	args := fioArgs(file, size, s)
	args = append(args, pages.args...)
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(os.Environ(), pages.env...)
	cmd.Dir = filepath.Dir(file) // fio leaves state files where it stands
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return Floor{}, fmt.Errorf("%w: %s", err, lastLine(stderr.String(), string(out)))
	}
	floor, err := parseFio(out, s)
	if err != nil {
		return Floor{}, err
	}
	floor.Pages = pages.name
	floor.Command = strings.Join(append(append(pages.env, "fio"), args...), " ")
	return floor, nil
}

func fioArgs(file string, size int64, s Shape) []string {
	rw, sync := "write", "none"
	if s.Read {
		rw = "read"
	}
	if s.Durable {
		sync = "dsync"
	}
	args := []string{
		"--name=floor", "--filename=" + file, fmt.Sprintf("--size=%d", size),
		"--ioengine=io_uring", "--direct=1", "--fixedbufs=1", "--registerfiles=1",
		"--rw=" + rw, fmt.Sprintf("--bs=%d", s.Block), fmt.Sprintf("--iodepth=%d", s.Depth),
		"--sync=" + sync, "--fallocate=none", fmt.Sprintf("--runtime=%dms", int(s.Seconds*1000)),
		"--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:90:99:99.9",
		"--output-format=json",
	}
	if s.Pause > 0 {
		args = append(args, fmt.Sprintf("--thinktime=%d", s.Pause.Microseconds()), "--thinktime_blocks=1")
	}
	if !s.Grow {
		args = append(args, "--overwrite=1", "--time_based=1") // a growing file ends with its time or its size
	}
	return args
}

// fioResult is the part of fio's JSON that is used.
type fioResult struct {
	Version string `json:"fio version"`
	Jobs    []struct {
		Error       int     `json:"error"`
		UserPercent float64 `json:"usr_cpu"`
		SysPercent  float64 `json:"sys_cpu"`
		Read, Write struct {
			Bytes   int64   `json:"io_bytes"`
			Rate    float64 `json:"bw_bytes"`
			IOPS    float64 `json:"iops"`
			Millis  float64 `json:"runtime"`
			Count   int64   `json:"total_ios"`
			Latency struct {
				Max        float64            `json:"max"`
				Mean       float64            `json:"mean"`
				Percentile map[string]float64 `json:"percentile"`
			} `json:"lat_ns"`
		}
	} `json:"jobs"`
}

func parseFio(out []byte, s Shape) (Floor, error) {
	// fio prints notes before the JSON.
	start := bytes.IndexByte(out, '{')
	if start < 0 {
		return Floor{}, fmt.Errorf("no JSON in its output: %.200q", out)
	}
	var r fioResult
	if err := json.NewDecoder(bytes.NewReader(out[start:])).Decode(&r); err != nil {
		return Floor{}, fmt.Errorf("its output: %w", err)
	}
	if len(r.Jobs) != 1 || r.Jobs[0].Error != 0 {
		return Floor{}, fmt.Errorf("its job failed: %.200s", out[:start])
	}
	job := r.Jobs[0]
	io := job.Write
	if s.Read {
		io = job.Read
	}
	if io.Count == 0 || io.Bytes == 0 {
		return Floor{}, errors.New("it moved nothing")
	}
	at := func(q string) time.Duration { return time.Duration(io.Latency.Percentile[q]) }
	floor := Floor{
		Shape: s.String(), Tool: r.Version, MBps: io.Rate / 1e6, OpsPerS: io.IOPS,
		Latency: Latency{Count: io.Count, Mean: time.Duration(io.Latency.Mean), Max: time.Duration(io.Latency.Max),
			P50: at("50.000000"), P90: at("90.000000"), P99: at("99.000000"), P999: at("99.900000")},
		CPU: (job.UserPercent + job.SysPercent) / 100 * io.Millis / 1000 / (float64(io.Bytes) / (1 << 30)),
	}
	if floor.Latency.P50 == 0 || math.IsNaN(floor.CPU) {
		return Floor{}, errors.New("it reported no latencies; fio 3.1 or newer is needed")
	}
	return floor, nil
}

// lastLine is the last thing a program said, for an error message.
func lastLine(texts ...string) string {
	for _, text := range texts {
		if text = strings.TrimSpace(text); text != "" {
			return text[strings.LastIndexByte(text, '\n')+1:]
		}
	}
	return "it said nothing"
}

package main

import (
	"errors"
	"os/exec"
	"syscall"
)

// signaledError says whether what Wait answered is the end by SIGKILL.
func signaledError(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

func (a *app) printDemo(r demoReport) {
	stored := demoIngest{Bytes: r.FirstHalf.Bytes + r.SecondHalf.Bytes, Seconds: r.FirstHalf.Seconds + r.SecondHalf.Seconds}
	a.printf("\nRingfence demo on %s\n\n", r.Host)
	a.printf("  stored     %s (%s) from %s\n", plural(r.Lines, "record"), bytesText(r.Bytes), r.Source)
	a.printf("             %s records/s, %.0f MB/s, every one durable before it was acknowledged\n",
		countText(int64(float64(r.Lines)/max(stored.Seconds, 1e-9))), stored.mbps())
	a.printf("             these lines have %d bytes each: their rate is limited by %s, not by the device\n", r.Bytes/max(r.Lines, 1), cores())
	a.printf("  device     %.0f MB/s durable without an engine (%s, %s, just before);\n", r.Floor.MBps, r.Floor.Shape, r.Floor.Tool)
	a.printf("             the engine got %.0f MB/s of payload with 1 KiB records in 1 MiB batches, %.0f %% of that,\n", r.Large.MBps(), 100*r.Large.MBps()/r.Floor.MBps)
	a.printf("             and %.1f %% with the lines\n", 100*stored.mbps()/r.Floor.MBps)
	a.printf("  layout     %s, %s; ranges split under load:\n", plural(r.Ranges, "active range"), plural(r.Segments, "segment"))
	for _, s := range r.Splits {
		a.printf("             %s\n", s)
	}
	fences := fencesSummary{Count: r.FirstHalf.Fences.Count + r.SecondHalf.Fences.Count, Worst: max(r.FirstHalf.Fences.Worst, r.SecondHalf.Fences.Worst)}
	if fences.Count > 0 {
		fences.Mean = (r.FirstHalf.Fences.Mean*timeOf(r.FirstHalf.Fences.Count) + r.SecondHalf.Fences.Mean*timeOf(r.SecondHalf.Fences.Count)) / timeOf(fences.Count)
	}
	a.printf("  fences     %s closed, %s on average, %s at worst\n", plural(fences.Count, "segment"), timeText(fences.Mean), timeText(fences.Worst))
	k := r.Kill
	a.printf("  kill -9    %s acknowledged before it, %s found after it, %d lost\n", plural(k.Acked, "record"), plural(k.Stored, "record"), k.Lost)
	a.printf("             %.0f ms to open again, %s recovered; everything was sent again\n", k.OpenMillis, plural(k.Recovered, "open segment"))
	a.printf("             and the %s that were there were recognised\n", plural(k.Recognised, "record"))
	a.printf("  read back  %s by group %q in %.1f s, %.0f MB/s, every record verified\n", plural(r.Lines, "record"), demoGroup, r.ReadSeconds, float64(r.Bytes)/1e6/max(r.ReadSeconds, 1e-9))
	a.printf("             count, order for each key and digest %s are the source's\n", r.Digest)
	if r.Directory != "" {
		a.printf("  kept       %s\n             try: ringfence topic describe %s --data-dir %s\n", r.Directory, demoTopic, r.Directory)
	}
	a.printf("\nEverything that was acknowledged is there, once, in order.\n")
}

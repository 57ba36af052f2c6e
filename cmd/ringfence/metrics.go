package main

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/server"
	"github.com/ringfence/ringfence/engine/store"
)

// sample is what the numbers are taken from, at one moment.
type sample struct {
	engine engine.Stats
	server server.Stats
	auth   engine.AuthStats
	lags   []engine.GroupLag
}

// metric is one name of /metrics with its one description.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	tell func(s *sample, emit func(v float64, labels ...string))
	took func(s *sample) store.Durations // in place of these two: it is a histogram
}

func described(name, help string, kind prometheus.ValueType, labels []string, tell func(*sample, func(float64, ...string))) metric {
	return metric{desc: prometheus.NewDesc("ringfence_"+name, help, labels, nil), kind: kind, tell: tell}
}

// durations is a histogram of times.
func durations(name, help string, took func(engine.Stats) store.Durations) metric {
	return metric{desc: prometheus.NewDesc("ringfence_"+name, help, nil, nil), took: func(s *sample) store.Durations { return took(s.engine) }}
}

// collect sends what the metric is now.
func (m *metric) collect(now *sample, ch chan<- prometheus.Metric) {
	if m.took == nil {
		m.tell(now, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
		})
		return
	}
	d := m.took(now)
	upTo := map[float64]uint64{}
	for i, n := range d.UpTo {
		upTo[store.DurationBound(i).Seconds()] = n
	}
	ch <- prometheus.MustNewConstHistogram(m.desc, d.Count, d.Sum.Seconds(), upTo)
}

func counter(name, help string, value func(engine.Stats, server.Stats) float64) metric {
	return described(name, help, prometheus.CounterValue, nil, func(s *sample, emit func(float64, ...string)) { emit(value(s.engine, s.server)) })
}

func gauge(name, help string, value func(engine.Stats, server.Stats) float64) metric {
	return described(name, help, prometheus.GaugeValue, nil, func(s *sample, emit func(float64, ...string)) { emit(value(s.engine, s.server)) })
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

var allMetrics = slices.Concat([]metric{
	counter("appends_total", "Frames that were stored.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Appends) }),
	counter("records_total", "Records that were stored.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Records) }),
	counter("duplicate_records_total", "Records that were not stored again because their producer had sent them before.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Duplicates) }),
	counter("frame_bytes_total", "Bytes of stored frames.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.FrameBytes) }),
	counter("flushes_total", "Durable writes.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Flushes) }),
	counter("flush_bytes_total", "Bytes of durable writes, padding included.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.FlushBytes) }),
	counter("storage_failures_total", "Writes that failed; each closes its segment.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Failures) }),
	gauge("stalled_segments", "Open segments of which the disk has not answered a write for 10 seconds or more: appends to them wait.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Stalled) }),
	counter("damage_total", "Damaged stretches that were met in files of segments, each once: when they were opened, checked behind the start, or read.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Damages) }),
	counter("changed_frames_total", "Frames in memory of their producers that were changed while they were written.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Changed) }),
	counter("void_frames_total", "Frames that were not stored because their producer changed one in its memory: that one, and what it sent behind.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Voided) }),
	durations("flush_seconds", "How long durable writes took, from when the disk was given one.", func(e engine.Stats) store.Durations { return e.Store.Latency }),
	gauge("queued_frames", "Frames that were taken and not yet given to the disk.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.QueuedAppends) }),
	gauge("queued_bytes", "Bytes of frames that were taken and not yet given to the disk.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.QueuedBytes) }),
	gauge("unconfirmed_bytes", "How far commit marks are behind, together: bytes that were given to the disk and are not durable, or not everything before them.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.UnconfirmedBytes) }),
	durations("fence_seconds", "How long fences took, from asking for one to its latch on disk.", func(e engine.Stats) store.Durations { return e.FenceTook }),
	gauge("stored_bytes", "Bytes of the segment files, up to where they are durable.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.StoredBytes) }),
	gauge("free_bytes", "Free space of the segment files' file system, at the last look.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.FreeBytes) }),
	gauge("recovered_segments", "Segments that an earlier process had left open, and this process closed when it started.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Recovered) }),
	gauge("recovery_seconds", "How long it took to look at all segments when this process started.", func(e engine.Stats, _ server.Stats) float64 { return e.Store.RecoveryTook.Seconds() }),
	counter("fences_total", "Segments that were closed.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Fences) }),
	gauge("fence_mean_seconds", "Mean time from asking for a fence to its latch on disk.", func(e engine.Stats, _ server.Stats) float64 { return e.FenceMean.Seconds() }),
	gauge("fence_max_seconds", "Longest time from asking for a fence to its latch on disk.", func(e engine.Stats, _ server.Stats) float64 { return e.FenceMax.Seconds() }),
	gauge("segments", "Segments whose files are known.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Segments) }),
	gauge("open_segments", "Segments that take records.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Store.Open) }),
	gauge("out_of_space", "1 while records are refused because the file system is full.", func(e engine.Stats, _ server.Stats) float64 { return one(e.Store.OutOfSpace) }),
	gauge("arena_bytes", "Memory for records on their way.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.Arena) }),
	gauge("arena_used_bytes", "Memory for records on their way that is in use.", func(e engine.Stats, _ server.Stats) float64 { return float64(e.ArenaUsed) }),
	gauge("uptime_seconds", "Time since the data directory was opened.", func(e engine.Stats, _ server.Stats) float64 { return e.Uptime.Seconds() }),

	gauge("connections", "Connections of clients.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Connections) }),
	counter("connections_accepted_total", "Connections of clients that were taken.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Accepted) }),
	counter("connections_refused_total", "Connections of clients that were refused because there were too many.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Refused) }),
	counter("connections_cut_off_total", "Connections that were ended for what the client did or left undone.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.CutOff) }),
	described("requests_total", "Requests of clients, by what they ask for, as the protocol calls it.", prometheus.CounterValue, []string{"request"},
		func(s *sample, emit func(float64, ...string)) { each(s.server.RequestsBy, emit) }),
	described("requests_failed_total", "Requests that were answered with an error, by its reason, as the protocol calls it; those of requests_throttled_total do not count.", prometheus.CounterValue, []string{"reason"},
		func(s *sample, emit func(float64, ...string)) { each(s.server.FailedBy, emit) }),
	counter("requests_throttled_total", "Requests to store records that were put off because a user has used up the quota; clients send them again later.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Throttled) }),
	counter("received_bytes_total", "Bytes of requests.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Received) }),
	counter("sent_bytes_total", "Bytes of answers and pages.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Sent) }),
	gauge("request_bytes", "Memory that requests take until they are answered, without the arena's.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.HeapBytes) }),
	gauge("page_bytes", "Memory that pages take until they are sent.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.PageBytes) }),

	described("logins_total", "Logins, by what became of them: ok; wrong user or secret; locked_out after wrong passwords; rate_limited, because the address tried too often; failed, because it could not be checked.",
		prometheus.CounterValue, []string{"result"}, func(s *sample, emit func(float64, ...string)) {
			emit(float64(s.auth.OK), "ok")
			emit(float64(s.auth.Wrong), "wrong")
			emit(float64(s.auth.LockedOut), "locked_out")
			emit(float64(s.auth.RateLimited), "rate_limited")
			emit(float64(s.auth.Failed), "failed")
		}),
	described("lockouts_total", "How often a user was locked out at an address for wrong passwords.", prometheus.CounterValue, nil,
		func(s *sample, emit func(float64, ...string)) { emit(float64(s.auth.Lockouts)) }),

	gauge("groups", "Groups that have members.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Groups) }),
	gauge("group_members", "Members of all groups.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Members) }),
	counter("group_generations_total", "How often groups changed who of their members reads which range.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Generations) }),
	counter("group_hand_overs_total", "Ranges that went from one member of a group to another.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.HandOvers) }),
	described("group_lag_records", "Records that a group has still to read, of the first 1000 groups by topic and name.", prometheus.GaugeValue, []string{"topic", "group"},
		func(s *sample, emit func(float64, ...string)) {
			for _, l := range s.lags {
				emit(float64(l.Records), l.Topic, l.Group)
			}
		}),
}, sharedMetrics)

func each(counts map[string]int64, emit func(float64, ...string)) {
	for name, n := range counts {
		emit(float64(n), name)
	}
}

// Who asks for the lags of groups has them looked up, so there are not many, and not long.
const (
	mostLags = 1000
	lagsTime = 5 * time.Second
)

// metrics collects them; there are none before the directory is open.
type metrics struct{ state *adminState }

func (metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range allMetrics {
		ch <- m.desc
	}
}

func (c metrics) Collect(ch chan<- prometheus.Metric) {
	s := c.state.serving.Load()
	if s == nil {
		return
	}
	now := sample{engine: s.engine.Stats(), server: s.server.Stats()}
	if s.auth != nil {
		now.auth = s.auth.Stats()
	}
	ctx, stop := context.WithTimeout(context.Background(), lagsTime)
	defer stop()
	now.lags, _, _ = s.engine.GroupLags(ctx, mostLags) // an engine that is closed has none
	for _, m := range allMetrics {
		m.collect(&now, ch)
	}
}

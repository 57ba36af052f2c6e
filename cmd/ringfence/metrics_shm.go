package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/server"
)

// sharedMetrics are those of shared memory: of all clients, and by user. There are no more
// users than the server counts, and no label of single clients, who come and go; these are
// listed by 'ringfence shm'.
var sharedMetrics = []metric{
	gauge("shm_clients", "Clients that share memory with the server.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Clients) }),
	gauge("shm_bytes", "Memory that clients share with the server.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Bytes) }),
	counter("shm_clients_attached_total", "Clients that came to share memory.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Attached) }),
	counter("shm_clients_refused_total", "Connections of users who may not share memory.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Refused) }),
	counter("shm_clients_hostile_total", "Clients that were cut off for breaking the rules of shared memory.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Hostile) }),
	counter("shm_clients_faults_total", "Clients that were cut off because their memory failed.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Faults) }),
	counter("shm_submissions_total", "Frames that came through shared memory.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Submissions) }),
	counter("shm_submitted_bytes_total", "Bytes of the frames that came through shared memory.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.FrameBytes) }),
	counter("shm_copies_total", "Frames that came through shared memory and were copied.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Copies) }),
	counter("shm_copied_bytes_total", "Bytes of the frames that came through shared memory and were copied.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.CopiedBytes) }),
	counter("shm_lent_total", "Frames in shared memory that were written from where they lay.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Lent) }),
	counter("shm_clients_changed_total", "Clients that broke the rules of shared memory by changing a frame while it was written.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Changed) }),
	counter("shm_ring_full_total", "Frames through shared memory after which their client could send no more until one was answered.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.RingFull) }),
	counter("shm_files_total", "Descriptors of closed segments that clients with shared memory were given, each for one page.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.Files) }),
	counter("shm_file_bytes_total", "Bytes of frames that clients with shared memory read from files of closed segments.", func(_ engine.Stats, s server.Stats) float64 { return float64(s.Shared.FileBytes) }),

	byUser("shm_user_clients", "Clients of a user that share memory; uid is \"other\" for all users behind the first 256.", prometheus.GaugeValue, func(u *server.SharedUser) float64 { return float64(u.Clients) }),
	byUser("shm_user_bytes", "Memory that the clients of a user share.", prometheus.GaugeValue, func(u *server.SharedUser) float64 { return float64(u.Bytes) }),
	byUser("shm_user_clients_attached_total", "Clients of a user that came to share memory.", prometheus.CounterValue, func(u *server.SharedUser) float64 { return float64(u.Attached) }),
	byUser("shm_user_clients_hostile_total", "Clients of a user that were cut off for breaking the rules of shared memory.", prometheus.CounterValue, func(u *server.SharedUser) float64 { return float64(u.Hostile) }),
	byUserAnd("shm_user_clients_turned_away_total", "Clients of a user that got no memory, by what there was too little of: clients, memory, user_clients, user_memory (the settings), host.", "reason",
		func(u *server.SharedUser, emit func(float64, string)) {
			for reason, n := range u.TurnedAway {
				emit(float64(n), reason)
			}
		}),
	byUserAnd("shm_user_frames_total", "Frames of a user's clients that went to the engine, by how: copied, or lent from where they lie.", "path",
		func(u *server.SharedUser, emit func(float64, string)) {
			emit(float64(u.Copies), "copied")
			emit(float64(u.Lent), "lent")
		}),
	byUserAnd("shm_user_frame_bytes_total", "Bytes of the frames of a user's clients that went to the engine, by how: copied, or lent from where they lie.", "path",
		func(u *server.SharedUser, emit func(float64, string)) {
			emit(float64(u.CopiedBytes), "copied")
			emit(float64(u.LentBytes), "lent")
		}),
	byUser("shm_user_frames_stored_total", "Frames of a user's clients that are stored, as the client was told.", prometheus.CounterValue, func(u *server.SharedUser) float64 { return float64(u.Stored) }),
	byUserAnd("shm_user_frames_refused_total", "Frames of a user's clients that were refused, by the code that the client was told.", "reason",
		func(u *server.SharedUser, emit func(float64, string)) {
			for code, n := range u.Refused {
				emit(float64(n), code)
			}
		}),
	byUser("shm_user_ring_full_total", "Frames of a user's clients after which the client could send no more until one was answered.", prometheus.CounterValue, func(u *server.SharedUser) float64 { return float64(u.RingFull) }),
	byUser("shm_user_wait_seconds_total", "Time that frames of a user's clients waited for memory of the engine.", prometheus.CounterValue, func(u *server.SharedUser) float64 { return u.Waited.Seconds() }),
	byUser("shm_user_files_total", "Descriptors of closed segments that a user's clients were given, each for one page.", prometheus.CounterValue, func(u *server.SharedUser) float64 { return float64(u.Files) }),
	byUser("shm_user_file_bytes_total", "Bytes of frames that a user's clients read from files of closed segments.", prometheus.CounterValue, func(u *server.SharedUser) float64 { return float64(u.FileBytes) }),
}

func byUser(name, help string, kind prometheus.ValueType, value func(*server.SharedUser) float64) metric {
	return described(name, help, kind, []string{"uid"}, func(s *sample, emit func(float64, ...string)) {
		for i := range s.server.Shared.Users {
			u := &s.server.Shared.Users[i]
			emit(value(u), userLabel(u))
		}
	})
}

// byUserAnd is byUser of counters with one more label.
func byUserAnd(name, help, label string, tell func(u *server.SharedUser, emit func(v float64, label string))) metric {
	return described(name, help, prometheus.CounterValue, []string{"uid", label}, func(s *sample, emit func(float64, ...string)) {
		for i := range s.server.Shared.Users {
			u := &s.server.Shared.Users[i]
			tell(u, func(v float64, label string) { emit(v, userLabel(u), label) })
		}
	})
}

func userLabel(u *server.SharedUser) string {
	if u.Others {
		return "other"
	}
	return strconv.FormatUint(uint64(u.UID), 10)
}

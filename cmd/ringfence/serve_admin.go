package main

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/ringfence/ringfence/engine"
	"github.com/ringfence/ringfence/engine/server"
)

// adminState is what the admin listener tells of; the zero value is a process that is
// still opening its directory.
type adminState struct {
	serving atomic.Pointer[serving]
	ended   atomic.Bool
}

type serving struct {
	engine *engine.Engine
	server *server.Server
	auth   *engine.Authenticator // nil: nobody logs in
}

func (s *adminState) ready(e *engine.Engine, sv *server.Server, auth *engine.Authenticator) {
	s.serving.Store(&serving{e, sv, auth})
}

func (s *adminState) stopping() { s.ended.Store(true) }

// adminServer starts answering the operator, if there is an address for it.
func (d *daemon) adminServer() {
	if d.adminAt == nil {
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics{&d.state})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "up") })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		switch s := d.state.serving.Load(); {
		case s == nil:
			answer(w, http.StatusServiceUnavailable, "opening the data directory")
		case d.state.ended.Load():
			answer(w, http.StatusServiceUnavailable, "stopping")
		case s.engine.Stats().Store.OutOfSpace:
			answer(w, http.StatusServiceUnavailable, "the file system is full: records are refused")
		default:
			answer(w, http.StatusOK, "ready")
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /shm", func(w http.ResponseWriter, _ *http.Request) {
		s := d.state.serving.Load()
		if s == nil {
			answer(w, http.StatusServiceUnavailable, "opening the data directory")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(frontends(s.server))
	})
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	d.admin = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	d.log.Info("admin", "address", d.adminAt.Addr().String())
	go func() { _ = d.admin.Serve(d.adminAt) }()
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text + "\n"))
}

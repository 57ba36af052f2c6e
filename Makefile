# One word for each thing a developer does; `make` alone lists them. Every target
# installs what it needs by itself, shows where it is and ends with a summary.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

GO ?= go
BIN := $(CURDIR)/.bin
RINGFENCE := $(BIN)/ringfence
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(BIN)/golangci-lint-$(GOLANGCI_VERSION)
FUZZTIME ?= 60s
PKG ?= ./...
ARGS ?=

# Without cgo the binary is static and no C compiler is needed; only `race` has one.
export CGO_ENABLED := 0

.PHONY: help demo test race fuzz bench lint gen build modules

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | awk -F'\t' '{printf "  make %-7s %s\n", $$1, $$2}'

demo: build ## store real text, kill the engine in the middle, read everything back and prove it (ARGS="--help")
	@$(RINGFENCE) demo $(ARGS)

test: modules ## every test (PKG=./segfile/... for some, ARGS=-short to be quick)
	@$(GO) test -json -timeout 20m $(ARGS) $(PKG) | $(GO) run .ci/tally.go

race: modules ## every test under the race detector; installs gcc when root, else skips and says so
	@if ! command -v gcc >/dev/null && ! command -v clang >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "race: the race detector needs a C compiler; installing gcc"; \
			apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install gcc libc6-dev >/dev/null; \
		else \
			echo "race: skipped: the race detector needs a C compiler; install gcc, or run this as root on Debian"; exit 0; \
		fi; \
	fi; \
	CGO_ENABLED=1 $(GO) test -race -json -timeout 40m $(ARGS) $(PKG) | $(GO) run .ci/tally.go

fuzz: modules ## every fuzz target for FUZZTIME (60s) each, one after another
	@FUZZTIME=$(FUZZTIME) .ci/fuzz

bench: build ## the performance table beside fio's floor (installs fio when root; ARGS="--runs 5")
	@if ! command -v fio >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "bench: installing fio, the floor the engine is measured against"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install fio >/dev/null; \
	fi; \
	$(RINGFENCE) bench append --suite --floor $(ARGS)

lint: modules $(GOLANGCI) ## gofmt, go vet on amd64 and arm64, golangci-lint
	@echo "lint: gofmt"; \
	bad=$$(git ls-files -co --exclude-standard '*.go' | xargs -r gofmt -l); \
	if [ -n "$$bad" ]; then echo "not formatted, run gofmt -w on:"; echo "$$bad"; exit 1; fi; \
	echo "lint: go vet, amd64"; GOARCH=amd64 $(GO) vet ./...; \
	echo "lint: go vet, arm64"; GOARCH=arm64 $(GO) vet ./...; \
	echo "lint: golangci-lint $(GOLANGCI_VERSION)"; nice $(GOLANGCI) run ./...; \
	echo "lint: clean"

$(GOLANGCI):
	@echo "lint: building golangci-lint $(GOLANGCI_VERSION) once, about two minutes on two cores"; \
	mkdir -p $(BIN); \
	GOBIN=$(BIN) GOFLAGS= GOOS= GOARCH= nice $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION); \
	mv $(BIN)/golangci-lint $@

gen: ## generate the flatbuffer code again (installs flatc when root)
	@if ! command -v flatc >/dev/null; then \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "gen: installing flatc"; \
			apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y install flatbuffers-compiler >/dev/null; \
		else echo "gen: flatc is missing; install flatbuffers-compiler"; exit 1; fi; \
	fi; \
	$(GO) generate ./...; \
	git status --short -- '*.go' | sed 's/^/gen: changed /'; echo "gen: done"

# Go asks git for the revision and fails where git refuses to tell, as in a checkout
# of somebody else; here a revision that is not told is left out.
build: modules ## the static binary .bin/ringfence
	@mkdir -p $(BIN); echo "build: $(RINGFENCE)"; \
	revision=$$(git describe --always --abbrev=40 --exclude='*' --dirty=+ 2>/dev/null || true); \
	$(GO) build -trimpath -buildvcs=false -ldflags "-X main.revision=$$revision" -o $(RINGFENCE) ./cmd/ringfence

modules:
	@command -v $(GO) >/dev/null || { echo "Go is not installed: get 1.26 or newer from https://go.dev/dl"; exit 1; }; \
	$(GO) mod download

# What one does here. `make` alone lists it.

MODULES := . ./cmd/gotsem ./screenshotd ./verify ./verify/miniredis
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
SECONDS := 600

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

test: deps ## install what tests need, and pass them all, with -race
	@for m in $(MODULES); do echo "# $$m"; (cd $$m && go test -race -timeout 10m ./...) || exit 1; done

deps: ## install redis-server, gcc and a headless Chromium, if they are missing
	@scripts/deps.sh

lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "gofmt -w these:"; echo "$$unformatted"; exit 1; }
	@for m in $(MODULES); do echo "# $$m"; (cd $$m && go vet ./... && go run $(STATICCHECK) ./...) || exit 1; done

demo: ## the main job, on the embedded store
	go run ./cmd/gotsem demo

verify: deps ## faults, histories, mutations: a short run with fixed seeds
	cd verify && go run . check

soak: deps ## random faults for SECONDS (default 600)
	cd verify && go run . soak -seconds $(SECONDS)

bench: deps ## ours and the rivals on one Redis, in turn; writes docs/performance.md
	cd verify/race && go run . -out ../../docs

lab: deps ## the load-shedding experiment, whole; draws the charts in docs/
	cd screenshotd && go run . lab --out ../docs

ci: lint test verify ## what CI runs

.PHONY: help test deps lint demo verify soak bench lab ci

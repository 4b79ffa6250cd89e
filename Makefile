# What one does here. `make` alone lists it.

MODULES := . ./promsem ./otelsem ./grpcshed ./examples ./cmd/gotsem ./screenshotd ./verify ./verify/miniredis ./verify/bench
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM := gotest.tools/gotestsum@v1.13.0
SECONDS := 600
CLIENT := oldest

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# gotestsum tells of each test when it ends; go test says nothing before a package does.
test: deps ## install what tests need, and pass them all, with -race
	@for m in $(MODULES); do echo "# $$m: building, then a line a test"; \
		(cd $$m && go run $(GOTESTSUM) --format testname -- -race -timeout 10m ./...) || exit 1; done

clients: deps ## the root's main tests as its users have it, on the oldest go-redis it asks for, or on CLIENT=latest
	@scripts/clients.sh $(CLIENT)

deps: ## install redis-server, gcc, Chromium, nginx, Prometheus and jsonnet, if they are missing
	@scripts/deps.sh

tidy: ## go mod tidy in every module, none of which need be published
	@scripts/tidy.sh

lint: ## gofmt, go vet, staticcheck, tidy modules, and that go.work.sum is whole
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "gofmt -w these:"; echo "$$unformatted"; exit 1; }
	@for m in $(MODULES); do echo "# $$m"; (cd $$m && go vet ./... && go run $(STATICCHECK) ./...) || exit 1; done
	@scripts/tidy.sh --check
	@sum=$$(cat go.work.sum); go list -m all >/dev/null; [ "$$sum" = "$$(cat go.work.sum)" ] || { echo "go list -m all added to go.work.sum: commit it"; exit 1; }

demo: ## the main job, on the embedded store
	go run ./cmd/gotsem demo

verify: deps ## faults, histories, mutations: a short run with fixed seeds
	cd verify && go run . check

soak: deps ## random faults for SECONDS (default 600)
	cd verify && go run . soak -seconds $(SECONDS)

levels: deps ## several limits at once on a real Redis: fair shares, and limits that cross; 2 minutes
	cd verify && go run . levels

uploads: ## refused uploads as clients and proxies see them, beside a bare handler; 5 minutes
	@scripts/deps.sh uploads
	cd verify && go run ./uploads

flood: ## large gRPC calls, 50 times what the server takes: its memory stays level; 2 minutes
	cd grpcshed && go run ./internal/flood

bench: deps ## ours and the rivals on one Redis, in turn; writes docs/performance.md
	cd verify/bench && go run . -out ../../docs

lab: deps ## the load-shedding experiment, whole; draws the charts in docs/
	cd screenshotd && go run . lab --out ../docs

release-check: ## a release of a clone, and all that comes of it: install, packages, images, manifests; 10 minutes
	@scripts/deps.sh release
	@scripts/release-check.sh

ci: lint test clients verify ## what CI runs

.PHONY: help test clients deps tidy lint demo verify soak levels uploads flood bench lab release-check ci

#!/usr/bin/env bash
# clients.sh VERSION passes the root module's main tests on one version of go-redis:
# "oldest" is the one that go.mod asks for, and "latest" the newest there is. It does so
# as a user has the module, without the workspace, where the highest version that any of
# our modules asks for would count. The tests that look at the whole tree are not for it.
set -euo pipefail
cd "$(dirname "$0")/.."
client=github.com/redis/go-redis/v9
version=${1:-oldest}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp go.mod go.sum "$work"
export GOWORK=off GOFLAGS="${GOFLAGS:-} -modfile=$work/go.mod"

if [ "$version" != oldest ]; then
	go get "$client@$version"
fi
echo "clients: $(go list -m "$client"), asked for $version"
if [ "$version" = oldest ]; then
	asked=$(sed -n "s,.*$client \(v[^ ]*\).*,\1,p" go.mod)
	[ "$(go list -m -f '{{.Version}}' "$client")" = "$asked" ] || { echo "clients: go.mod asks for $asked, and something it needs asks for more" >&2; exit 1; }
fi
go vet ./...
go test -count=1 -timeout 5m -skip 'Drawing|DocsRun|ARelease|FaultsName' . ./httpshed
go test -count=1 -timeout 5m -run '^TestConformance(Single|Sentinel|Cluster)$|HalfOpen|Check|Bounded|Cancel' ./store/redisstore

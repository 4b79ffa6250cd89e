#!/usr/bin/env bash
# publish.sh runs goreleaser on the tag that is checked out, with the notes that
# CHANGELOG.md has for it. What it is given goes to goreleaser: make release-check says
# --skip=publish.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/tools.sh
v=${GORELEASER_CURRENT_TAG:?the tag, such as v0.4.0}
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
export GOFLAGS=${RELEASE_GOFLAGS:-}
GOWORK=off GOBIN=$bin go install "$GORELEASER"
GOWORK=off GOBIN=$bin go install "$CYCLONEDX"
sed -n "/^## $v /,/^## v/{/^## /!p}" CHANGELOG.md >"$bin/notes.md"
[ -s "$bin/notes.md" ] || { echo "publish: CHANGELOG.md has nothing for $v" >&2; exit 1; }
PATH=$bin:$PATH "$bin/goreleaser" release --clean --release-notes "$bin/notes.md" "$@"

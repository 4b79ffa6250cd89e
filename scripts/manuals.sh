#!/bin/sh
# manuals.sh FOLDER writes the man page and the completions of gotsem, as the command of
# this tree prints them. They have no date, so that two builds are the same.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "$1"
to=$(cd "$1" && pwd)
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
(cd cmd/gotsem && GOOS='' GOARCH='' go build -o "$bin/gotsem" .)
"$bin/gotsem" man >"$to/gotsem.1"
gzip -9 -n -c "$to/gotsem.1" >"$to/gotsem.1.gz"
"$bin/gotsem" completion bash >"$to/gotsem.bash"
"$bin/gotsem" completion zsh >"$to/_gotsem"
"$bin/gotsem" completion fish >"$to/gotsem.fish"

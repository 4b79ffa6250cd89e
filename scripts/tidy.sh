#!/usr/bin/env bash
# tidy.sh is go mod tidy for each module of the workspace; tidy.sh --check writes
# nothing, and fails where something is to do.
#
# go mod tidy by itself looks for our own modules where Go looks for any, since it knows
# no workspace. So it runs here on a copy of go.mod which says where they are. In go.mod
# itself there is no replace: go install refuses a command that has one.
#
# go.work says replace, for the version that the modules name each other by. Without it
# Go wants the go.mod of that version too, although the module is in the workspace.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/modules.sh
check=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS="${GOFLAGS:-} -mod=mod"

# The version that they name each other by: v0.0.0 until the first release.
version=$(for m in $(modules); do (cd "$m" && go mod edit -json); done |
	sed -n "/\"Path\": \"${root//\//\\/}\",/{n;s/.*\"Version\": \"\([^\"-]*\)\".*/\1/p}" | sort -V | tail -1)
bad=""
differs() { echo "tidy: $1: run make tidy, and commit what it changed" >&2; bad=1; }

# go.work: a replace for each module that another requires.
cp go.work "$work/go.work"
go work edit -json | sed -n '/"Replace"/,$p' | tr -d ' ,"\t\n' | grep -o "Old:{Path:${root}[^:]*Version:[^}]*" |
	sed 's/.*Path:\(.*\)Version:\(.*\)/\1@\2/' | while read -r old; do go work edit -dropreplace="$old" "$work/go.work"; done || :
for m in $(for n in $(modules); do needs "$n"; done | sort -u); do
	go work edit -replace="$(path "$m")@$version=./${m#.}" "$work/go.work"
done
go work edit -fmt "$work/go.work"
if ! cmp -s go.work "$work/go.work"; then
	if [ -n "$check" ]; then differs go.work; else cp "$work/go.work" go.work; fi
fi

for m in $(modules); do
	copy=$work/$m.d
	mkdir -p "$copy"
	cp "$m/go.mod" "$copy/go.mod"
	cp "$m/go.sum" "$copy/go.sum" 2>/dev/null || : >"$copy/go.sum"
	for other in $(modules); do go mod edit -dropreplace="$(path "$other")" "$copy/go.mod"; done
	for n in $(needs "$m"); do go mod edit -require="$(path "$n")@$version" "$copy/go.mod"; done
	# What it requires may require more of ours: it is told of all.
	for other in $(modules); do
		[ "$other" = "$m" ] || go mod edit -replace="$(path "$other")=$PWD/$other" "$copy/go.mod"
	done
	(cd "$m" && GOWORK=off go mod tidy -modfile="$copy/go.mod")
	for other in $(modules); do go mod edit -dropreplace="$(path "$other")" "$copy/go.mod"; done
	# The sums of our own modules are a release's to write.
	grep "^${root}[ /]" "$m/go.sum" >>"$copy/go.sum" 2>/dev/null || :
	same=1
	[ "$(sort -u "$m/go.sum" 2>/dev/null)" = "$(sort -u "$copy/go.sum")" ] || same=""
	if [ -n "$check" ]; then
		cmp -s "$m/go.mod" "$copy/go.mod" || same=""
		[ -n "$same" ] || differs "$m/go.mod"
	else
		cp "$copy/go.mod" "$m/go.mod"
		[ -n "$same" ] || cp "$copy/go.sum" "$m/go.sum"
	fi
done

make=$(sed -n 's/^MODULES := //p' Makefile | tr ' ' '\n' | sed 's,^\./,,' | sort)
if [ "$make" != "$(modules)" ]; then
	echo "tidy: MODULES in the Makefile and the use lines of go.work differ: make them the same" >&2
	bad=1
fi
[ -z "$bad" ]

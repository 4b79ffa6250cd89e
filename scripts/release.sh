#!/usr/bin/env bash
# release.sh VERSION makes a release: one commit that carries the tags of all modules.
# It pushes nothing, and says at the end what to push. If it fails, this repository is
# as it was: all is done in a clone, and fetched at the end.
#
# A module's go.sum names the hash of the modules below it, which are released by the
# same commit. That works since the zip of a module leaves out the modules inside it:
# the root's hash does not depend on their go.sums. So it goes layer by layer. The
# modules whose needs have a tag are tidied, and get a passing tag in the clone, until
# all have one. Then one commit takes the place of the passing ones.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/modules.sh
home=$PWD
v=${1:-}
fail() { echo "release: $*" >&2; exit 1; }

# What is wrong is found before anything is made.
[[ $v =~ ^v[01]\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] ||
	fail "VERSION is \"$v\": give one such as v0.4.0; from v2 on Go wants another import path"
[ -z "$(git status --porcelain)" ] || fail "the tree has changes: commit them first"
[ "$(sed -n '/^## Unreleased$/,/^## v/p' CHANGELOG.md | grep -c '^- ')" -gt 0 ] ||
	fail "CHANGELOG.md has nothing under \"## Unreleased\""
# The import path was the original gotsem's. Go would take a tag of that for newer.
published=$(git ls-remote --tags "https://$root" | sed -n 's,.*refs/tags/\(v[^^]*\)$,\1,p') ||
	fail "https://$root cannot be asked for its tags, and VERSION must be above all of them"
newest() { sed 's/-/~/' | sort -V | tail -1 | sed 's/~/-/'; } # v0.4.0-rc.1 is before v0.4.0
highest=$({ echo "$published"; git tag --list 'v*'; } | newest)
if [ "$v" = "$highest" ] || [ "$(printf '%s\n' "$highest" "$v" | newest)" != "$v" ]; then
	fail "$v is not above $highest, the highest version that https://$root or this repository has"
fi
for m in $(modules); do
	! git rev-parse -q --verify "refs/tags/$(tag "$m" "$v")" >/dev/null || fail "the tag $(tag "$m" "$v") is there"
done

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
git clone -q "$home" "$work/tree"
cd "$work/tree"
git config user.name "$(git -C "$home" config user.name)"
git config user.email "$(git -C "$home" config user.email)"
base=$(git rev-parse HEAD)

# go_apart CACHE COMMAND... runs go as somebody has it who has nothing of ours: no
# workspace, and a cache of its own. The tags come from the clone; what others wrote,
# from the cache of this machine or the proxy.
proxy="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
go_apart() {
	local cache=$1
	shift
	env GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.file://$work/tree.insteadOf" GIT_CONFIG_VALUE_0="https://$root" \
		GIT_ALLOW_PROTOCOL=file:https GOPRIVATE="$root" GOPROXY="$proxy" GOMODCACHE="$work/$cache" \
		GOWORK=off GOBIN="$work/bin" GOFLAGS="-modcacherw -trimpath $mod" go "$@"
}
mod=-mod=mod

echo "release: the text of $v"
sed -i "s/^## Unreleased\$/## Unreleased\n\n## $v ($(date -u +%F))/" CHANGELOG.md
sed -i '/^<!-- until the first tag -->$/,/^<!-- end -->$/d' README.md
for m in $(modules); do
	for n in $(needs "$m"); do (cd "$m" && go mod edit -require="$(path "$n")@$v"); done
done
sed -i "s,^\(.*${root}[^ ]* \)v[^ ]* =>,\1$v =>," go.work

# Layer by layer.
git add -A
git commit -q -m "release $v: the text"
first=$(git rev-parse HEAD)
git tag "$v"
done=" . "
left=$(for m in $(modules); do [ "$m" = . ] || ! released "$m" || echo "$m"; done)
while [ -n "$left" ]; do
	layer="" later=""
	for m in $left; do
		ready=1
		for n in $(needs "$m"); do [[ $done == *" $n "* ]] || ready=""; done
		if [ -n "$ready" ]; then layer="$layer $m"; else later="$later $m"; fi
	done
	[ -n "$layer" ] || fail "these need each other, or modules that are not released:$later"
	echo "release: tidy$layer"
	for m in $layer; do (cd "$m" && go_apart mod mod tidy); done
	git add -A
	git commit -q -m "release $v:$layer"
	for m in $layer; do git tag "$(tag "$m" "$v")"; done
	done="$done${layer# } "
	left=$later
done
nested=()
for m in $(modules); do [ "$m" = . ] || nested+=(":(exclude)$m"); done
git diff --quiet "$first" HEAD -- . "${nested[@]}" || fail "the root changed after its hash was taken"

# One commit takes the place of the passing ones.
git tag --list | while read -r t; do
	if [ "${t##*/}" = "$v" ]; then git tag -d "$t" >/dev/null; fi
done
git reset -q --soft "$base"
git commit -q -m "release $v

One commit for the tags of all modules: see scripts/release.sh."
tags=()
for m in $(modules); do
	released "$m" || continue
	git tag -a -m "$(path "$m") $v" "$(tag "$m" "$v")"
	tags+=("$(tag "$m" "$v")")
done

echo "release: the workspace at $v"
sum=$(cat go.work.sum 2>/dev/null || :)
for m in $(modules); do (cd "$m" && go build -o /dev/null ./...) || fail "$m does not build in the workspace"; done
go list -m all >/dev/null
[ "$sum" = "$(cat go.work.sum 2>/dev/null || :)" ] || fail "go list -m all added to go.work.sum: commit that first"

# With the sums of the tagged commit, and then as a stranger, who asks by version.
commands=()
for m in $(modules); do
	released "$m" || continue
	echo "release: build $(path "$m") outside of the workspace"
	(cd "$m" && mod=-mod=readonly && go_apart strange build -o /dev/null ./...)
	if [ "$(cd "$m" && go list -f '{{.Name}}' . 2>/dev/null)" = main ]; then commands+=("$m"); fi
done
[ -z "$(git status --porcelain)" ] || fail "building changed the tree: $(git status --short)"
for m in ${commands[@]+"${commands[@]}"}; do
	(cd "$work" && mod="" && go_apart stranger install "$(path "$m")@$v")
	said=$("$work/bin/${m##*/}" --version)
	echo "release: go install $(path "$m")@$v; its --version says: $said"
	[[ " $said " == *" $v "* ]] || fail "that is not $v"
done

cd "$home"
for t in "${tags[@]}"; do git fetch -q --no-tags "$work/tree" "refs/tags/$t:refs/tags/$t"; done
git fetch -q --no-tags "$work/tree" HEAD
git merge -q --ff-only FETCH_HEAD

echo "release: $v is committed and tagged here, and not published. To publish it:"
echo "  git push --atomic origin HEAD ${tags[*]:1}"
echo "  git push origin $v    # last and alone: GitHub starts no workflow for more than three tags"

#!/usr/bin/env bash
# release-check.sh makes a release of a clone of this repository, as it is committed, and
# checks all that comes of one: that a stranger can install it, that two builds are the
# same, the packages, the images, and what deploy and .github say. Nothing is published.
# Besides Go's module proxy and Debian's packages it needs no network.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/modules.sh
. scripts/tools.sh
home=$PWD
v=${VERSION:-v0.999.0}
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
step() { echo; echo "# $*"; }
fail() { echo "release-check: $*" >&2; exit 1; }
tool() { (cd "$work" && GOWORK=off GOBIN="$work/tools" GOFLAGS='' go install "$1"); }
unset GOFLAGS
[ -z "$(git status --porcelain)" ] || fail "commit first: it is a commit that is released"

step "scripts: shellcheck"
shellcheck -x scripts/*.sh .ci/run .ci/nightly

step "workflows: actionlint, and every action is pinned by its commit"
tool "$ACTIONLINT"
"$work/tools/actionlint" .github/workflows/*.yml
! grep -hnE 'uses: ' .github/workflows/*.yml | grep -vE 'uses: [^@]+@[0-9a-f]{40} # v[0-9]' || fail "an action is not pinned"

step "compose.yaml: the Compose Specification"
tool "$COMPOSE" && mv "$work/tools/cmd" "$work/tools/compose"
(cd deploy && "$work/tools/compose" compose.yaml >"$work/compose.out") || fail "compose.yaml: $(cat "$work/compose.out")"
printf 'services: {a: {image: b, red_only: true}}\n' >"$work/wrong.yaml"
! "$work/tools/compose" "$work/wrong.yaml" >/dev/null 2>&1 || fail "the check of compose.yaml finds nothing"

step "Kubernetes: kustomize, and the schemas of Kubernetes 1.30 and of the Prometheus operator"
tool "$KUSTOMIZE"
tool "$KUBECTL_VALIDATE"
crds=$(cd "$work" && GOFLAGS='' go mod download -json "$PROMETHEUS_OPERATOR" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')/example/prometheus-operator-crd
for k in base demo monitoring; do "$work/tools/kustomize" build "deploy/k8s/$k" >"$work/$k.yaml"; done
! grep -n 'elector: {}$' "$work"/{base,demo,monitoring}.yaml || fail "an empty selector means every pod"
"$work/tools/kubectl-validate" --version 1.30 --local-crds "$crds" "$work/base.yaml" "$work/demo.yaml" "$work/monitoring.yaml"
sed 's/maxUnavailable: 1/maxUnavailble: 1/' "$work/base.yaml" >"$work/wrong.yaml"
! "$work/tools/kubectl-validate" --version 1.30 "$work/wrong.yaml" >/dev/null 2>&1 || fail "the check of the manifests finds nothing"
sed -n '/^spec:/,$p' deploy/k8s/monitoring/prometheusrule.yaml | sed '1d; s/^  //' >"$work/rules.yaml"
promtool check rules "$work/rules.yaml"
# Each metric that a rule or the autoscaler names is one that promsem has.
grep -ohE 'gotsem_[a-z_]+(_total|_active|_status)\b' "$work/rules.yaml" deploy/k8s/base/hpa.yaml | sort -u | while read -r name; do
	grep -q "\"$name\"" promsem/*.go || fail "no metric is called $name"
done
for name in $(sed -n 's/^ *- \(SCREENSHOTD_[A-Z_]*\)=.*/\1/p' deploy/k8s/base/kustomization.yaml) $(grep -oE 'SCREENSHOTD_[A-Z_]+' deploy/compose.yaml deploy/Dockerfile | sed 's/.*://' | sort -u); do
	flag=--$(echo "${name#SCREENSHOTD_}" | tr 'A-Z_' 'a-z-')
	grep -q -- "\`$flag\`" screenshotd/README.md || [ "$flag" = --log ] || fail "screenshotd has no $flag, for $name"
done

# The hub stands for GitHub. It has a tag of the original, as that has.
step "a release of a clone: $v"
git clone -q --bare "$home" "$work/hub"
git -C "$work/hub" rev-parse -q --verify refs/tags/v0.2.0 >/dev/null || git -C "$work/hub" tag v0.2.0 "$(git rev-list --max-parents=0 HEAD | tail -1)"
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0="url.file://$work/hub.insteadOf" GIT_CONFIG_VALUE_0="https://$root" \
	GIT_CONFIG_KEY_1=advice.detachedHead GIT_CONFIG_VALUE_1=false GIT_ALLOW_PROTOCOL=file:https
git clone -q "$work/hub" "$work/maintainer"
cd "$work/maintainer"
git config user.name somebody
git config user.email somebody@example.com
if [ "$(sed -n '/^## Unreleased$/,/^## v/p' CHANGELOG.md | grep -c '^- ')" = 0 ]; then
	sed -i 's/^## Unreleased$/&\n\n- Checked./' CHANGELOG.md
	git commit -qam "changelog: an entry"
fi
scripts/release.sh "$v" | tee "$work/said"
sed -n 's/^  \(git push [^#]*\).*/\1/p' "$work/said" >"$work/push"
[ "$(wc -l <"$work/push")" = 2 ] || fail "release.sh does not say what to push"
sh -e "$work/push"

step "a stranger: go install $root/cmd/gotsem@latest"
proxy="file://$(go env GOMODCACHE)/cache/download,$(go env GOPROXY)"
export GOPRIVATE=$root GOPROXY=$proxy
(cd "$work" && GOWORK=off GOMODCACHE="$work/stranger" GOBIN="$work/bin" GOFLAGS='-modcacherw -trimpath' go install "$root/cmd/gotsem@latest")
said=$("$work/bin/gotsem" --version)
echo "$said"
[[ "$said " == "gotsem $v "* ]] || fail "want gotsem $v"
"$work/bin/gotsem" man | mandoc -T lint -W error
"$work/bin/gotsem" completion bash | bash -n
"$work/bin/gotsem" completion zsh | zsh -n
"$work/bin/gotsem" completion fish | fish --no-execute

step "goreleaser, twice, in two places"
for n in 1 2; do
	git clone -q -b "$v" "https://$root" "$work/build$n"
	(cd "$work/build$n" && GORELEASER_CURRENT_TAG=$v RELEASE_GOFLAGS=-modcacherw GOMODCACHE="$work/stranger" scripts/publish.sh \
		--skip=publish,docker >"$work/goreleaser$n" 2>&1) || { cat "$work/goreleaser$n"; fail "goreleaser"; }
done
cd "$work/build1"
diff "$work/build1/dist/checksums.txt" "$work/build2/dist/checksums.txt" || fail "two builds differ"
cat dist/checksums.txt
# The second took what the first had compiled. One that shares nothing with it, by go
# alone, makes the same binary.
(cd "$work/build2/cmd/gotsem" && GOFLAGS=-modcacherw GOCACHE="$work/cache" GOWORK=off CGO_ENABLED=0 \
	go build -trimpath -buildvcs=true -ldflags '-s -w' -o "$work/again" .)
binary=$(echo dist/gotsem_linux_"$(go env GOARCH)"*/gotsem)
cmp "$work/again" "$binary" || fail "a build of its own differs from $binary"
[[ "$("$binary" --version) " == "gotsem $v "* ]] || fail "it says $("$binary" --version)"
service=$(echo dist/screenshotd_linux_"$(go env GOARCH)"*/screenshotd)
[[ "$("$service" --version) " == "screenshotd $v "* ]] || fail "screenshotd does not say $v"

step "packages"
want="usr/bin/gotsem usr/share/man/man1/gotsem.1.gz usr/share/bash-completion/completions/gotsem usr/share/fish/vendor_completions.d/gotsem.fish"
for package in dist/*.deb dist/*.rpm dist/*.apk; do
	case $package in
	*.deb) dpkg-deb --contents "$package" >"$work/list" ;;
	*.rpm) rpm -qlp "$package" >"$work/list" 2>/dev/null ;;
	*.apk) tar tzf "$package" >"$work/list" 2>/dev/null ;;
	esac
	for file in $want; do grep -q "$file\$" "$work/list" || fail "$package has no $file"; done
	grep -qE '(site-functions|vendor-completions)/_gotsem$' "$work/list" || fail "$package has no completion of zsh"
done
dpkg-deb -x dist/*_linux_"$(dpkg --print-architecture)".deb "$work/root"
"$work/root/usr/bin/gotsem" --version
zcat "$work/root/usr/share/man/man1/gotsem.1.gz" | mandoc -T lint -W error
tar tzf dist/gotsem_*_linux_"$(go env GOARCH)".tar.gz | sort | tr '\n' ' '
ls dist/*.cdx.json >/dev/null || fail "no SBOM"
grep -q '"purl": "pkg:golang/github.com/redis/go-redis/v9@' dist/gotsem_*_linux_"$(go env GOARCH)".cdx.json || fail "the SBOM does not name go-redis"

# No base image can be had without a registry. The last stages are built on nothing: what
# would break there is a binary that is not static, or that wants a file of root's.
step "images: the last stages, on an empty base, as nobody"
image() { buildah --storage-driver vfs --root "$work/images" --runroot "$work/run" "$@"; }
mkdir -p "$work/context/linux/amd64" "$work/context/linux/arm64" "$work/out/out"
for a in amd64 arm64; do cp dist/gotsem_linux_"$a"*/gotsem "$work/context/linux/$a/"; done
cp "$binary" "$work/context/gotsem"
image bud -q --isolation chroot --format docker --platform "linux/$(go env GOARCH)" --build-arg STATIC=scratch -f deploy/Dockerfile.release -t release "$work/context"
# The build stage by hand, and then the last one as it stands.
for command in gotsem screenshotd; do
	(cd "$work/build2" && CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$work/out/out/$command" "./$(case $command in gotsem) echo cmd/gotsem ;; *) echo screenshotd ;; esac)")
done
{ echo "ARG STATIC"; echo "FROM scratch AS build"; echo "COPY out /out"; sed -n '/^FROM ${STATIC} AS gotsem/,$p' deploy/Dockerfile; } >"$work/out/Dockerfile"
image bud -q --isolation chroot --format docker --build-arg STATIC=scratch -f "$work/out/Dockerfile" -t tree "$work/out"
for name in release tree; do
	user=$(image inspect --type image -f '{{.OCIv1.Config.User}}' "$name")
	[ "$user" = 65532:65532 ] || fail "image $name runs as \"$user\""
	c=$(image from "$name")
	image run --isolation chroot "$c" -- /gotsem --version
	image run --isolation chroot "$c" -- /gotsem demo --seconds 3 --json | tail -1 | grep -q summary || fail "image $name: the demo does not run"
done

step "release-check: all of it passed"

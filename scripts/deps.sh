#!/bin/sh
# Installs what the tests need beside Go: git, redis-server, gcc (for -race), a headless
# Chromium (for screenshotd and the pages), nginx (in front of the pages), Prometheus and
# jsonnet (for deploy). Debian and its kin; elsewhere it says what is missing. What is
# there already is left alone. `deps.sh uploads` installs what `make uploads` needs
# instead: the clients and the proxies. `deps.sh release` does so for
# `make release-check`: shells, and the tools of packages and images.
set -eu

want=""
need() { # a command, the package that brings it
	command -v "$1" >/dev/null 2>&1 || want="$want $2"
}
if [ "${1:-}" = uploads ]; then
	PATH=$PATH:/usr/sbin
	need curl curl
	need nginx nginx
	need haproxy haproxy
	need node nodejs
	need python3 python3
	for python in python3 /usr/bin/python3 none; do
		"$python" -c 'import requests' >/dev/null 2>&1 && break
	done
	[ "$python" != none ] || want="$want python3-requests"
elif [ "${1:-}" = release ]; then
	need git git
	need shellcheck shellcheck
	need promtool prometheus
	need mandoc mandoc
	need zsh zsh
	need fish fish
	need rpm rpm
	need buildah buildah
else
	need git git
	need gcc gcc
	[ -e /usr/include/stdlib.h ] || want="$want libc6-dev"
	[ -n "${GOTSEM_REDIS_SERVER:-}" ] || command -v valkey-server >/dev/null 2>&1 || need redis-server redis-server
	need promtool prometheus
	need prometheus prometheus
	need jsonnet jsonnet
	[ -x /usr/sbin/nginx ] || need nginx nginx
	command -v chromium >/dev/null 2>&1 || need chromium-headless-shell chromium-headless-shell
fi
[ -n "$want" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
	echo "make deps: missing, and no apt-get to install them with:$want" >&2
	echo "make deps: install them in this system's way, then run make test again" >&2
	exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
	if ! command -v sudo >/dev/null 2>&1; then
		echo "make deps: missing:$want" >&2
		echo "make deps: as root: apt-get install$want" >&2
		exit 1
	fi
	sudo=sudo
fi
echo "make deps: installing$want"
# A policy of 101 keeps apt from starting a service: the tests start their own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
	$sudo chmod +x "$policy"
	trap '$sudo rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086 # a list of words
$sudo apt-get install -y -qq --no-install-recommends $want >/dev/null

#!/bin/sh
# on-device.sh NAME N -- COMMAND…: run COMMAND with one of the devices NAME/1 to NAME/N.
set -eu
name=$1 n=$2
shift 3
# Inside a slot of NAME one of its devices is free, or will be in a moment.
exec gotsem run "$name" -n "$n" --wait 1h -- sh -c '
	name=$1 n=$2
	shift 2
	while :; do
		i=1
		while [ "$i" -le "$n" ]; do
			code=0
			DEVICE=$i gotsem run "$name/$i" --wait 0 -E 213 -- "$@" || code=$?
			[ "$code" = 213 ] || exit "$code"
			i=$((i + 1))
		done
		sleep 0.2
	done' sh "$name" "$n" "$@"

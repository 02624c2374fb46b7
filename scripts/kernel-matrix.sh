#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs scripts/kernel-test.sh for the kernels, architectures and network cards that Libra
# is to work on, one after the other, and prints what came of each.
#
# usage: scripts/kernel-matrix.sh [-t SECONDS] [REGEXP]
#   -t SECONDS   time limit of each emulation (3600)
#   REGEXP       run only the lines of the matrix that match, for example 'arm64' or '-k 6.12'
# Exit status: 0 if all passed, else 1. The output of each is in ~/.cache/libra/matrix.
set -euo pipefail

# What arm64, whose emulation is the slowest, is to show: that the programs pass its kernels'
# verifiers and compute the same sums, and that the rings and the frames' states are right.
arm64='^(TestAggregateEqualsModel|TestAnswersOnInterface|TestForwardsBetweenHosts|TestOrdering|TestMatch.*|TestSocket.*|TestReceive.*|TestSend.*|TestReopen.*|TestGroup.*)$'
matrix=(
	"-k 6.1"
	"-k 6.12"
	"-k newest"
	"-k newest -n igb"
	"-k newest -n virtio-net"
	"-a arm64 -k 6.1 -f 1000 -r $arm64"
	"-a arm64 -k 6.12 -f 1000 -r $arm64"
	"-a arm64 -k newest -n igb" # the driver of virtio-net has no zero-copy mode there
)

limit=3600
while getopts t:h option; do
	case $option in
	t) limit=$OPTARG ;;
	h) sed -n '/^# usage/,/^# Exit/{s/^# //;/^Exit/d;p}' "$0" && exit ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
if [ $# -gt 1 ]; then
	echo "kernel-matrix: unexpected argument '$2'; -h shows the usage" >&2
	exit 2
fi
[[ $limit =~ ^[1-9][0-9]*$ ]] || {
	echo "kernel-matrix: '$limit' is not a positive number of seconds" >&2
	exit 2
}
cd "$(dirname "$0")/.."

logs=${XDG_CACHE_HOME:-$HOME/.cache}/libra/matrix
mkdir -p "$logs"
outcomes=() failed=0
for line in "${matrix[@]}"; do
	[[ $line =~ ${1:-.} ]] || continue
	name=${line%% -f *}
	log=$logs/$(tr -d ' ' <<<"$name").log
	echo "kernel-matrix: $name"
	read -ra arguments <<<"$line"
	status=0
	scripts/kernel-test.sh -t "$limit" "${arguments[@]}" >"$log" 2>&1 || status=$?
	[ "$status" -ne 130 ] && [ "$status" -ne 143 ] || exit "$status"
	[ "$status" -eq 0 ] || failed=1
	outcomes+=("$(printf '%-32s %4s passed %4s skipped  %s' "$name" "$(grep -c '^--- PASS' "$log")" "$(grep -c '^--- SKIP' "$log")" "$(tail -n 1 "$log")")")
done
if [ ${#outcomes[@]} -eq 0 ]; then
	echo "kernel-matrix: no line of the matrix matches '$1'" >&2
	exit 2
fi
printf '%s\n' "${outcomes[@]}"
exit "$failed"

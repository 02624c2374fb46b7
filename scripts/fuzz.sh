#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the module's fuzz targets, one after the other, and keeps what they find
# worth keeping: inputs that reached new code go from Go's build cache to the
# package's testdata/fuzz, where every later test run and fuzzing starts with
# them. Commit them. At most 200 inputs a target, the smallest and none of 4 KB
# or more, so that the repository stays small and tests fast.
#
# usage: scripts/fuzz.sh TIME [REGEXP]
#   TIME    for each target: a duration, 30s, or a number of inputs, 20000x.
#           Before Go 1.27 the end of a duration may be reported as a failure,
#           "context deadline exceeded" (go.dev/issue/75804); CI counts inputs.
#   REGEXP  only the targets that match
# A failing input is in testdata/fuzz too; the other targets still run.
set -euo pipefail
[ $# -eq 1 ] || [ $# -eq 2 ] || {
	sed -n '/^# usage/,/^#   REGEXP/s/^# //p' "$0" >&2
	exit 2
}
time=$1 only=${2:-.}
most=200 size=4096
cd "$(dirname "$0")/.."
cache=$(go env GOCACHE)/fuzz

# keep PACKAGE TARGET copies inputs that the target's last runs added.
keep() {
	local from=$cache/$1/$2 to have new=0 name
	to=$(go list -f '{{.Dir}}' "$1")/testdata/fuzz/$2
	[ -d "$from" ] || return 0
	mkdir -p "$to"
	have=$(find "$to" -type f | wc -l)
	while read -r _ name; do
		if [ ! -e "$to/$name" ] && [ $((have + new)) -lt $most ]; then
			cp "$from/$name" "$to/"
			new=$((new + 1))
		fi
	done < <(find "$from" -type f -size -${size}c -printf '%s %f\n' | sort -n)
	[ $new -eq 0 ] || echo "kept $new new inputs in ${to#"$PWD"/}"
	# The cache may hold inputs of an older target with other arguments.
	[ $new -eq 0 ] || go test -vet=off -count=1 -run "^$2\$" "$1"
}

failed=() ran=''
for folder in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs dirname | sort -u); do
	package=$(go list "$folder")
	for target in $(go test -vet=off -list '^Fuzz' "$package" | grep '^Fuzz' | grep -E -- "$only" || true); do
		echo "$package $target"
		ran=yes
		if go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1x "$package"; then
			keep "$package" "$target" || failed+=("$target")
		else
			failed+=("$target")
		fi
	done
done
[ -n "$ran" ] || {
	echo "fuzz.sh: no fuzz target matches '$only'; 'go test -list ^Fuzz ./...' shows their names" >&2
	exit 2
}
[ ${#failed[@]} -eq 0 ] || {
	echo "fuzz.sh: failed: ${failed[*]}" >&2
	exit 1
}

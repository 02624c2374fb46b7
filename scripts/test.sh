#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs all tests. Then it names the packages that took longer than their budget in
# CONTRIBUTING.md: that is no failure, since a busy machine is slow.
#
# usage: scripts/test.sh [-race]
#   -race  under the race detector, but for packages in which it finds nothing: those that
#          compute in one goroutine, and those whose tests wait for other programs
set -uo pipefail
race=
case "$*" in
"") ;;
-race) race=1 ;;
*)
	sed -n '/^# usage/,/^set/s/^# //p' "$0" >&2
	exit 2
	;;
esac
cd "$(dirname "$0")/.." || exit 1

# Without the race detector nothing needs cgo, and what 'make build' compiled serves again.
export CGO_ENABLED=0 LIBRA_CLIENTS_REQUIRED=1
log=$(mktemp) failed=0
trap 'rm -f "$log"' EXIT
tests() { # vet is a part of 'make lint'
	go test -vet=off -timeout 20m "$@" 2>&1 | tee -a "$log" || failed=1
}

if [ -z "$race" ]; then
	tests ./...
else
	one_goroutine='codec|lut|retransmit|sched|study|wire|scripts|p4'
	other_programs='clients|cmd/libra'
	plain="^\./($one_goroutine|$other_programs)(/|\$)"
	mapfile -t all < <(go list -f '.{{slice .ImportPath (len .Module.Path)}}' ./...)
	mapfile -t raced < <(printf '%s\n' "${all[@]}" | grep -vE "$plain")
	mapfile -t others < <(printf '%s\n' "${all[@]}" | grep -E "$plain")
	CGO_ENABLED=1 tests -race "${raced[@]}"
	tests "${others[@]}"
	# The control plane of the switch program; its frames are compared without.
	CGO_ENABLED=1 tests -race -short -skip 'Equal|Golden|Vector|LUT|Training|Mutant' ./p4
	# Whole clusters with the race detector in each process, over either backend.
	CGO_ENABLED=1 tests -race -run '^TestSynthetic$' ./cmd/libra
fi
pushd tools/mutants >/dev/null || exit 1 # a module of its own
tests ./...
popd >/dev/null || exit 1

[ -n "$race" ] || awk -F'|' '
	FNR == NR { if (/^\| `/) { gsub(/[ `]/, "", $2); budget[$2] = $3 + 0 } next }
	/^ok/ {
		split($0, word, "\t")
		sub(/^github.com\/libra-ina\/libra\//, "", word[2])
		if (!(word[2] in budget)) budget[word[2]] = budget["others"]
		if (word[3] + 0 > budget[word[2]]) printf "%s took %s, budget %d s: see \"How long tests take\" in CONTRIBUTING.md\n", word[2], word[3], budget[word[2]]
	}' CONTRIBUTING.md "$log"
exit $failed

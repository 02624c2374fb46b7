#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs all tests. Then it names the packages that took longer than their budget in
# CONTRIBUTING.md: that is no failure, since a busy machine is slow.
#
# usage: scripts/test.sh [-race]
#   -race  under the race detector, where it can find something: not tests that compute in one
#          goroutine, and not those whose work is in other programs. Each test still runs.
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
# Many tests wait, for timers and for other programs: two packages more than there are processors run.
tests() { # vet is a part of 'make lint'
	go test -vet=off -timeout 40m -p $(($(nproc) + 2)) "$@" 2>&1 | tee -a "$log" || failed=1
}
raced() { CGO_ENABLED=1 tests -race "$@"; }
# First the packages that take longest, most of which wait: the others run beside them.
longest=(./cmd/libra ./clients ./bpf ./cluster/node ./bench/push)

if [ -z "$race" ]; then
	tests "${longest[@]}" ./...
else
	one_goroutine='aggregator|cluster/plan|codec|lut|p4|packer/(heat|placement)|ps|retransmit|sched|scripts|study|train/(data|settings|weights)|wire'
	other_programs='bench/(engine|push)|clients|cmd/libra'
	plain="^\./($one_goroutine|$other_programs)(/|\$)"
	mapfile -t all < <(go list -f '.{{slice .ImportPath (len .Module.Path)}}' ./...)
	mapfile -t others < <(printf '%s\n' "${all[@]}" | grep -E "$plain")
	mapfile -t all < <(printf '%s\n' "${all[@]}" | grep -vE "$plain")
	# Tests of the other packages that compute, ten times as long under the detector: those that compare
	# the XDP program with the model, and those of the simulation's checks. Its lives of seeds remain.
	compute='Test(.*Equals?Model|ReplaysVectors|FramesAreAddedWholeOrNotAtAll|.*Fault.*AreFound|Fences|Standbys|Scripts|OutagesEndNothing|NeighboursAreApart|AgentsOutliveSwitches)'
	mapfile -t partly < <(grep -lrE --include='*_test.go' "^func $compute\(" "${all[@]}" | xargs dirname | sort -u)
	raced -skip "^$compute\$" ./bpf ./cluster/node "${all[@]}"
	# Whole clusters with the race detector in each process, over either backend, and benchmarks that end early.
	raced -run '^Test(Synthetic|InterruptedRunLeavesNoChild|FailingChildEndsTheRun)$' ./bench/engine ./bench/push ./cmd/libra
	# The control plane of the switch program; its frames are compared without.
	raced -short -skip 'Equal|Golden|Vector|LUT|Training|Mutant' ./p4
	tests ./cmd/libra ./clients "${others[@]}"
	tests -run "^$compute\$" "${partly[@]}"
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

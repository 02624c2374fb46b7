#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks the protocol's models in docs/spec with spin: that the correct ones hold,
# and that each mutant fails by the property that is there to find it.
#
# usage: scripts/spec.sh [-j JOBS] [WORDS...]
# With words, only the configurations whose line contains all of them.
set -euo pipefail

jobs=2
while getopts j: option; do
	case $option in
	j) jobs=$OPTARG ;;
	*) sed -n '6,7s/^# //p' "$0" >&2; exit 2 ;;
	esac
done
shift $((OPTIND - 1))
for tool in spin gcc; do
	command -v "$tool" >/dev/null || { echo "spec.sh: $tool is missing: make setup installs it" >&2; exit 1; }
done

spec=$(cd "$(dirname "$0")/../docs/spec" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What spin prints when a property fails.
declare -A prints=(
	[once]='assertion violated .*!\(applied\[n\]\)'
	[acknowledged]='assertion violated .*applied\[n\]\|\|pull\[n\]'
	[refused]='assertion violated .*!\((told|applied)\[n\]\)'
	[harvested]='assertion violated .*harvested=='
	[single]='assertion violated .*(open_hot&sums|bank\[current\]&|open_cold&|open&|open\[s\]&|bank\[g\]&)'
	[exact]='assertion violated .*(count_(hot|cold)|open|open\[[01]\])=='
	[covered]='assertion violated .*(n>=saved_steps|weights\[[01]\]&)'
	[whole]='assertion violated .*(!\(orphan\)|outcome==)'
	[caused]='assertion violated +orphan'
	[summed]='assertion violated .*(c==|fa\[g\]==)'
	[given]='assertion violated .*!\(given'
	[in_round]='assertion violated .*(C\[g\]&|/2\)<v|/1\)<v)'
	[progress]='acceptance cycle'
	[stuck]='invalid end state'
)

# check MODEL EXPECTED FLAGS... runs one configuration. EXPECTED is "holds" or a
# property; "holds-ever" and "progress" search for cycles, too.
check() {
	local model=$1 expected=$2 dir out=() search=(-DSAFETY -DNOCLAIM) run=(-m3000000) optimize=-O0 result
	shift 2
	dir=$(mktemp -d -p "$work")
	cd "$dir"
	# -O2 takes longer to compile than it saves in a search, and -O1 than it saves where a property fails.
	[[ $expected != holds* ]] || optimize=-O1
	case $expected in
	holds-ever | progress)
		search=(-DNFAIR=6)
		run+=(-a -f)
		;;
	esac
	if ! { spin -a "$@" "$spec/$model.pml" && gcc -w $optimize -DCOLLAPSE -DMEMLIM=1800 "${search[@]}" -o pan pan.c; } >spin.log 2>&1; then
		cat spin.log
		return 1
	fi
	./pan "${run[@]}" >pan.log 2>&1 || true
	mapfile -t out < <(sed -n -E 's/^ *([0-9.e+]+) states, stored.*/\1/p; s/^pan: elapsed time ([0-9.e+]+) seconds/\1/p; s/^ *([0-9.]+)\ttotal actual memory usage/\1/p' pan.log)
	if grep -qE "max search depth too small|out of memory|reached -DMEMLIM" pan.log; then
		result="NOT SEARCHED WHOLE"
	elif [[ $expected == holds* ]]; then
		grep -q 'errors: 0' pan.log && result=holds || result="FAILS: $(grep -m1 '^pan:' pan.log)"
	elif grep -qE "${prints[$expected]}" pan.log; then
		result="fails: $expected"
	else
		result="NOT FOUND BY $expected: $(grep -m1 -E '^pan:|errors:' pan.log)"
	fi
	printf '%-8s %-72s %-20s %9s states %6s s %5.0f MB\n' "$model" "$*" "$result" "${out[0]-}" "${out[2]-}" "${out[1]-0}"
	[[ $result == holds || $result == fails:* ]] || return 1
	cd / && rm -rf "$dir"
}
export -f check
export spec work
declare -p prints >"$work/prints"

# model, what is expected of it, flags
configurations() {
	cat <<-'END'
		flow holds
		flow holds -DSERVER
		flow holds -DW=4 -DM=32
		flow holds -DPLACES=W -DLIFE=M/2+W
		flow holds -DMUTANT=EQUALITY -DLIFE=2*W
		flow holds -DREFUSE
		flow holds -DREFUSE -DSERVER
		flow holds-ever -DPROGRESS
		flow once -DLIFE=M/2+2*W+1
		flow once -DPLACES=W
		flow acknowledged -DPLACES=1 -DLIFE=M/2
		flow once -DMUTANT=EQUALITY
		flow once -DMUTANT=EQUALITY -DLIFE=2*W+1
		flow once -DMUTANT=EQUALITY -DLIFE=2*W -DPLACES=W
		flow once -DMUTANT=RETX_ONLY
		flow acknowledged -DMUTANT=UNMARKED
		flow acknowledged -DMUTANT=NARROW -DSERVER
		flow acknowledged -DMUTANT=COUNTED
		flow progress -DPROGRESS -DMUTANT=NO_REPEAT
		flow refused -DREFUSE -DMUTANT=FRESH_AGAIN
		flow acknowledged -DREFUSE -DMUTANT=UNTOLD
		flow acknowledged -DREFUSE -DMUTANT=SHOWN
		flow refused -DREFUSE -DMUTANT=NOT_CLEARED
		swap holds
		swap holds-ever -DFRAMES=2 -DTIMEOUTS=1
		swap harvested -DMUTANT=NO_WAIT
		swap harvested -DMUTANT=BANK_FIRST
		swap harvested -DMUTANT=TURN_BACK
		swap harvested -DMUTANT=ANSWER
		swap harvested -DMUTANT=MARK
		swap harvested -DMUTANT=ADD_LATE
		swap harvested -DMUTANT=TOUCH_LATE
		swap harvested -DMUTANT=TOUCH_OTHER
		swap stuck -DMUTANT=HOLD_LOCK
		swap progress -DMUTANT=HOLD_LOCK -DFRAMES=2 -DTIMEOUTS=1
		cluster holds
		cluster holds -DWORKERS=2 -DSTEPS=1 -DWORKER_CRASHES=0 -DSWITCH_CRASHES=0
		cluster holds -DASYNC -DLIVES=2 -DSERVER_CRASHES=0 -DSWITCH_CRASHES=0
		cluster holds -DASYNC -DLIVES=2 -DWORKER_CRASHES=0 -DSWITCH_CRASHES=0
		cluster holds -DASYNC -DLIVES=3 -DSTEPS=1 -DSWITCH_CRASHES=0
		cluster holds-ever -DLIVES=3 -DSTEPS=1 -DSWITCH_CRASHES=0
		shares holds
		shares holds -DSTEPS=3 -DBREAKS=2
		shares holds -DASYNC -DROUNDS=0
		shares holds -DASYNC -DBREAKS=0
		shares holds-ever
		shares holds -DCHANGE -DSTEPS=3 -DBREAKS=2
		shares holds-ever -DCHANGE
		shares exact -DCHANGE -DMUTANT=CLOSE_EARLY
		shares exact -DMUTANT=ONE_NUMBER
		shares exact -DMUTANT=COMMIT_WITHOUT
		shares covered -DASYNC -DMUTANT=ONE_NUMBER
		shares covered -DASYNC -DMUTANT=COMMIT_WITHOUT
		shares covered -DASYNC -DMUTANT=REPORTS_LATE
		shares covered -DASYNC -DMUTANT=ASK_ONCE
		steps holds
		steps holds -DSTEPS=1 -DDEATHS=2
		steps holds -DSTEPS=1 -DSTOPS=2
		steps holds -DASYNC
		steps whole -DMUTANT=OVERTAKE
		steps whole -DMUTANT=FORGET
		steps whole -DMUTANT=FINISHED
		steps stuck -DMUTANT=FIRST_STEP
		steps stuck -DASYNC -DMUTANT=FIRST_STEP
		steps whole -DMUTANT=NO_TEAR
		steps stuck -DMUTANT=ARRIVAL_KEPT
		steps caused -DMUTANT=TORN_TWICE
		steps caused -DMUTANT=TEAR_NEXT
		steps stuck -DMUTANT=EARLY
		rounds holds
		rounds holds -DN=1 -DOPS=3
		rounds holds -DMODE=SYNC
		rounds holds -DMODE=SYNC -DN=1 -DOPS=3
		rounds holds -DLOSSY -DN=1 -DOPS=2
		rounds holds -DLOSSY -DN=1 -DOPS=2 -DMODE=SYNC
		rounds given -DMODE=PAPER
		rounds summed -DMODE=PAPER -DMUTANT=ONCE
		rounds summed -DMUTANT=NO_FILTER
		rounds summed -DMODE=SYNC -DMUTANT=NO_FILTER
		rounds summed -DMODE=SYNC -DMUTANT=SHORT_FILTER
		rounds summed -DMUTANT=NOT_ZEROED
		rounds summed -DMODE=SYNC -DN=1 -DOPS=3 -DMUTANT=NOT_ZEROED
		rounds summed -DMUTANT=ANY_SUM
		rounds summed -DMODE=SYNC -DMUTANT=ANY_SUM
		rounds summed -DMODE=SYNC -DMUTANT=ONE_BANK
		rounds given -DMUTANT=TWICE
		rounds in_round -DMUTANT=EARLY
		rounds in_round -DN=1 -DOPS=3 -DMUTANT=ANY_CONFIRMATION
		rounds holds -DLOSSY -DN=1 -DOPS=3
		rounds stuck -DLOSSY -DN=1 -DOPS=3 -DMUTANT=TAKERS_KEPT
		rounds stuck -DLOSSY -DN=1 -DOPS=3 -DMUTANT=ANY_TAKEN
		rounds stuck -DLOSSY -DN=1 -DOPS=2 -DMUTANT=UNANSWERED
		rounds stuck -DLOSSY -DN=1 -DOPS=2 -DMODE=SYNC -DMUTANT=UNANSWERED
		rounds stuck -DLOSSY -DN=1 -DOPS=2 -DMUTANT=UNCONFIRMED
		failover holds -DFENCES=1 -DWORKER_CRASHES=1 -DSERVER_CRASHES=1
		failover holds -DSTEPS=2 -DFENCES=1 -DWORKER_CRASHES=1
		failover holds-ever -DWORKERS=1 -DSTEPS=2 -DFENCES=1 -DWORKER_CRASHES=1 -DSERVER_CRASHES=1
		failover holds
		failover holds -DLIVES_ON
		failover holds -DENTERS
		failover holds -DENTERS -DLIVES_ON
		failover holds -DENTERS -DSTEPS=2
		failover holds -DENTERS -DFENCES=1 -DWORKER_CRASHES=1
		failover holds -DENTERS -DWORKERS=1 -DSTEPS=2 -DWORKER_CRASHES=2
		failover holds -DENTERS -DWITHDRAWALS=1
		failover holds -DENTERS -DFRAMES=2 -DGENS=2 -DFENCES=1 -DWITHDRAWALS=1
		failover holds -DFRAMES=2 -DGENS=2 -DFENCES=1
		failover holds -DWORKERS=1 -DFRAMES=3 -DLOG=2
		failover holds -DWORKERS=1 -DSTEPS=2 -DFENCES=1 -DWORKER_CRASHES=1 -DSERVER_CRASHES=1
		failover holds -DWORKERS=1 -DSTEPS=2 -DFRAMES=2 -DGENS=2 -DFENCES=1
		cluster exact -DMUTANT=NUMBER_ONLY
		cluster exact -DMUTANT=BANKS_KEPT
		cluster single -DMUTANT=SAME_EPOCH
		cluster exact -DMUTANT=ACK_FIRST
		cluster exact -DMUTANT=CLEAR_EARLY
		cluster single -DMUTANT=NEW_NUMBER
		cluster exact -DMUTANT=NO_INSTANCE
		cluster exact -DMUTANT=REJOIN
		cluster single -DMUTANT=NO_NUMBER
		cluster exact -DMUTANT=OPEN_SAVED
		cluster exact -DMUTANT=NEVER_AGAIN
		cluster covered -DASYNC -DMUTANT=FILTER_KEPT
		cluster covered -DASYNC -DMUTANT=SETTLE_ONCE
		cluster covered -DASYNC -DMUTANT=STALE_TICKET -DLIVES=2 -DSERVER_CRASHES=0 -DSWITCH_CRASHES=0
		failover single -DMUTANT=NO_FENCE
		failover single -DMUTANT=STALE_MARK
		failover exact -DMUTANT=LATE_MARK
		failover exact -DMUTANT=EARLY_COMMIT
		failover single -DMUTANT=SUMS_FIRST
		failover exact -DMUTANT=MARK_FIRST
		failover exact -DMUTANT=FREE_ON_ACK
		failover exact -DMUTANT=LATE_STEP
		failover exact -DMUTANT=LEAVE_EARLY
		failover stuck -DENTERS -DMUTANT=EARLY_BEGIN
		failover single -DENTERS -DWITHDRAWALS=1 -DMUTANT=FORGET_MARK
		failover single -DENTERS -DWITHDRAWALS=1 -DMUTANT=REPLACE_MARKS
		failover single -DENTERS -DMUTANT=NO_FENCE
		failover exact -DENTERS -DMUTANT=EARLY_COMMIT
		failover single -DENTERS -DMUTANT=SAME_EPOCH -DFENCES=1 -DWORKER_CRASHES=1
		failover single -DENTERS -DMUTANT=KEEP_BANK -DFENCES=1 -DWORKER_CRASHES=1
		failover single -DMUTANT=SAME_EPOCH -DWORKERS=1 -DSTEPS=2 -DFENCES=1 -DWORKER_CRASHES=1 -DSERVER_CRASHES=1
		failover exact -DMUTANT=KEEP_BANK -DWORKERS=1 -DSTEPS=2 -DFENCES=1 -DWORKER_CRASHES=1 -DSERVER_CRASHES=1
		failover exact -DMUTANT=STALE_TICKET -DWORKERS=1 -DSTEPS=2 -DFENCES=1 -DWORKER_CRASHES=1 -DSERVER_CRASHES=1
	END
}

chosen=$(configurations)
for word; do
	chosen=$(grep -F -e "$word" <<<"$chosen") || { echo "spec.sh: no configuration has all these words" >&2; exit 2; }
done
# shellcheck disable=SC2016 # the inner shell expands it
# xargs ends with an error if one of them does.
xargs -P "$jobs" -L 1 bash -c '. "$work/prints"; check "$@"' check <<<"$chosen" || {
	echo "spec.sh: a model that should hold fails, or a mutant is not found" >&2
	exit 1
}

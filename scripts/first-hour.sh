#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first hour of a new user, in a minute or so: clone, demo, data of one's own,
# evaluation, export, predictions in plain Python, a cluster by hand, a Go program in its
# own module, and, as root, packet rates as JSON and SVG. It types what README.md and docs/
# say, takes programs from there, and needs what scripts/setup.sh installs.
#
# usage: scripts/first-hour.sh
set -euo pipefail

[ $# -eq 0 ] || {
	echo "usage: scripts/first-hour.sh" >&2
	exit 2
}
checkout=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

begin=$SECONDS
step() {
	printf '%4d s  %s\n' $((SECONDS - begin)) "$*"
}
fail() {
	echo "first-hour.sh: $*" >&2
	exit 1
}

# block PAGE LANGUAGE prints the first block of a language in a page of the checkout.
block() {
	awk -v fence="\`\`\`$2" '$0 == fence { on = 1; next } on && /^```/ { exit } on' "$checkout/$1"
}
# member FILE NAME prints a member of a JSON object.
member() {
	python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$1" "$2"
}
# near A B fails unless two numbers are equal to 1e-6.
near() {
	python3 -c 'import sys; sys.exit(abs(float(sys.argv[1]) - float(sys.argv[2])) > 1e-6)' "$1" "$2"
}

step "clone and build"
git clone -q "$checkout" libra
make -C libra build >make.log 2>&1 || { cat make.log; fail "make build failed"; }
libra=$work/libra/bin/libra
"$libra" --version

step "demo"
"$libra" demo --backend udp --rows 20000 --workers 2 --epochs 1 --out synthetic 2>demo.log || { cat demo.log; fail "the demo failed"; }
"$libra" export --weights synthetic/weights.libra --out synthetic.npz

step "data of one's own"
python3 - <<'EOF'
import random
rng = random.Random(1)
for name, rows in ("train.libfm", 3000), ("test.libfm", 1000):
    with open(name, "w") as f:
        for _ in range(rows):
            user, item = rng.randrange(20), rng.randrange(30)
            click = rng.randrange(50) < user * 7 % 20 + item * 11 % 30
            f.write(f"{1 if click else -1} {user}:1 {100 + item}:1 {1000 + rng.randrange(rows)}:0.5\n")
EOF
gzip -n train.libfm # test.libfm stays as it is: both are read
"$libra" demo --backend udp --data train.libfm.gz --test test.libfm --workers 2 --sync --epochs 2 \
	--baseline one-process,server-only --out own 2>demo.log || { cat demo.log; fail "the demo failed"; }

step "evaluate, export, predict in plain Python"
"$libra" evaluate --weights own/weights.libra --data test.libfm --json >evaluation.json
auc=$(member evaluation.json auc)
near "$auc" "$(member own/result.json auc)" || fail "the demo and evaluate disagree about the AUC"
for format in csv npz libfm xlearn; do
	"$libra" export --weights own/weights.libra --out "weights.$format" >/dev/null
	"$libra" evaluate --weights "weights.$format" --data test.libfm --json | cmp - evaluation.json
done
block docs/weights.md python >auc.py
near "$auc" "$(python3 auc.py weights.csv test.libfm)" || fail "Python has another AUC than $auc"
[ "$("$libra" predict --weights weights.npz --data test.libfm | wc -l)" = 1000 ] || fail "not a prediction for each row"

step "cluster by hand"
"$libra" config example | sed 's/# sync: true/sync: true/' >cluster.yaml
"$libra" config check cluster.yaml
"$libra" hotset build --data train.libfm.gz --out hot.libra
cat >cluster.sh <<'EOF'
set -eu
"$1" switch --config cluster.yaml 2>switch.log &
switch=$!
trap 'kill $switch; wait $switch || true' EXIT
"$1" ps --config cluster.yaml 2>ps.log &
"$1" worker --config cluster.yaml --id 1 2>worker.log
wait $!
EOF
# As root in a network namespace, where the ports of the example are free.
if [ "$(id -u)" = 0 ]; then
	# shellcheck disable=SC2016 # the inner shell expands it
	unshare -n sh -c 'ip link set lo up && exec sh cluster.sh "$1"' sh "$libra"
else
	sh cluster.sh "$libra"
fi || { cat ./*.log; fail "the cluster failed"; }
"$libra" evaluate --weights weights.libra --data test.libfm --json >evaluation.json
python3 -c 'import sys; sys.exit(float(sys.argv[1]) < 0.6)' "$(member evaluation.json auc)" || fail "the cluster has learnt nothing"

step "a Go program in a module of its own"
mkdir program
block docs/library.md go >program/main.go
cp "$checkout/go.sum" program
(
	cd program
	go mod init program
	go mod edit -require github.com/libra-ina/libra@v0.0.0 -replace "github.com/libra-ina/libra=$work/libra"
	go run -mod=mod . >../program.txt
) 2>program.log || { cat program.log; fail "the program failed"; }
[ "$(cat program.txt)" = "[3.00 2.00 -1.00]" ] || fail "the program learnt $(cat program.txt)"

if [ "$(id -u)" = 0 ]; then
	step "packet rates"
	"$libra" bench engine --measure echo --sizes 190 --baseline udp --rounds 1 --duration 100ms \
		--json --out plots >engine.json 2>engine.log || { cat engine.log; fail "the benchmark failed"; }
	/usr/bin/jsonschema -i engine.json libra/docs/schema/bench-engine.json || fail "the result is not what docs/schema describes"
	for plot in plots/*.svg; do
		python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "$plot"
	done
fi
step "done"

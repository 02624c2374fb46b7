#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other.
# usage: scripts/fuzz.sh TIME   (for example 30s; the time is for each target)
set -euo pipefail
time=${1:?usage: scripts/fuzz.sh TIME}
cd "$(dirname "$0")/.."
for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "$package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1x "$package"
  done
done

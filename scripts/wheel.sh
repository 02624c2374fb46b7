#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a wheel of the Python package that holds libra.so.1, for every Python 3 of this kind of
# machine, of the program's version, and tagged for the oldest glibc that has what the library needs.
# Needs a C compiler, make, and Python with pip, setuptools and wheel; nothing is downloaded.
# auditwheel checks the result, if it is in PATH or in a chroot of Debian unstable that
# scripts/torch.sh made (it is in no earlier Debian). LIBRA names the program; without it, one is built.
#
# usage: scripts/wheel.sh FOLDER
set -euo pipefail

[ $# -eq 1 ] || {
	echo "usage: scripts/wheel.sh FOLDER" >&2
	exit 2
}
die() {
	echo "wheel.sh: $*" >&2
	exit 1
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Debian's packages are of Debian's Python, which may not be the first in PATH.
python=''
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
	if "$candidate" -W ignore -c 'import setuptools, wheel, pip' 2>/dev/null; then
		python=$candidate
		break
	fi
done
[ -n "$python" ] || die "no Python among ${PYTHON:-python3 /usr/bin/python3} has pip, setuptools and wheel: as root, apt-get install python3-pip python3-setuptools python3-wheel, or name another one in PYTHON"
for tool in make "${CC:-cc}"; do
	command -v "$tool" >/dev/null || die "there is no $tool in PATH=$PATH: as root, scripts/setup.sh installs it"
done

# What is built is a copy, so that nothing is left beside the sources.
mkdir "$work/clients" "$work/wheel"
cp -r clients/python "$work/clients"
cp -r clients/c "$work/clients"
rm -rf "$work"/clients/*/build "$work"/clients/python/*.egg-info "$work/clients/python/libra/libra.so.1"
cp LICENSE "$work/clients/python"

self=${LIBRA:-$work/libra}
[ -n "${LIBRA:-}" ] || ${GO:-go} build -o "$self" ./cmd/libra
version=$("$self" version --json | sed 's/.*"version":"\([^"]*\)".*/\1/')
# A candidate for a release is of a tag; sources have the release's version.
sed -i "s/^VERSION = .*/VERSION = \"$version\"/" "$work/clients/python/libra/_version.py"
sed -i "s/^#define LIBRA_VERSION .*/#define LIBRA_VERSION \"$version\"/" "$work/clients/c/libra.h"

if date=$(git log -1 --format=%ct 2>/dev/null); then
	export SOURCE_DATE_EPOCH=$date # the files in the wheel have the commit's date
fi
(
	umask 022
	chmod -R u=rwX,go=rX "$work/clients"
	PYTHONWARNINGS=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore "$python" -m pip wheel -q \
		--no-index --no-deps --no-build-isolation --no-cache-dir -w "$work/wheel" "$work/clients/python"
) >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	die "the wheel cannot be built, for the reason above"
}
wheel=$(basename "$work"/wheel/libra-*.whl)
tag=${wheel##*-}
tag=${tag%.whl}

# auditwheel takes what the library needs from the library itself, and knows who has it.
sid=${XDG_CACHE_HOME:-$HOME/.cache}/libra/torch/sid
if command -v auditwheel >/dev/null; then
	audit=auditwheel report=$(auditwheel show "$work/wheel/$wheel")
elif [ "$(id -u)" -eq 0 ] && [ -x "$sid/usr/bin/auditwheel" ]; then
	copy=$(mktemp -d "$sid/tmp/wheel.XXXXXX")
	trap 'rm -rf "$work" "$copy"' EXIT
	cp "$work/wheel/$wheel" "$copy"
	audit="auditwheel of Debian unstable" report=$(chroot "$sid" auditwheel show "/tmp/${copy##*/}/$wheel")
else
	audit=''
fi
if [ -z "$audit" ]; then
	echo "wheel.sh: not checked by auditwheel, which is not there: make torch brings it" >&2
elif [[ $(tr -s ' \n' ' ' <<<"$report") != *"consistent with the following platform tag: \"$tag\""* ]]; then
	printf '%s\n' "$report" >&2
	die "auditwheel finds another tag than $tag"
else
	echo "wheel.sh: checked by $audit: $tag"
fi
mv "$work/wheel/$wheel" "$out/$wheel"
chmod 644 "$out/$wheel"
echo "$out/$wheel"

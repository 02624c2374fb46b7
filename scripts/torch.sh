#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the Python package with the Pythons and PyTorches of several
# releases of Debian. That of this machine's own release is the machine's; those of
# others are in chroots, which debootstrap makes once, of 1.7 GB each. Agents and all
# else run outside; a chroot has no network, mount or namespace of its own. Root, for
# chroot alone.
#
# usage: scripts/torch.sh [-k] [-v] [-r REGEXP] [SUITE...]
#   -k         only suites whose chroot is there: make none
#   -v         show what tests print, such as the list of collectives
#   -r REGEXP  run only the tests that match
#   SUITE      bookworm (PyTorch 1.13), trixie (2.6), sid (the newest): all of them by default
# Chroots are kept in ~/.cache/libra/torch; one that was removed is made anew, which is how to
# get a newer sid. Exit status: 0 if all passed, 1 if a test failed, 2 if something is missing.
set -euo pipefail

# Every test that runs Python has one of these names.
only='^Test(Python|Torch|AllReduce)' kept='' verbose=''
while getopts kvr:h option; do
	case $option in
	k) kept=yes ;;
	v) verbose=-v ;;
	r) only=$OPTARG ;;
	h) sed -n '/^# usage/,/^# Exit/s/^# //p' "$0" && exit ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
cd "$(dirname "$0")/.."

say() { echo "torch: $*"; }
die() {
	echo "torch: $*" >&2
	exit 2
}
suites=("$@")
[ $# -gt 0 ] || suites=(bookworm trixie sid)
for suite in "${suites[@]}"; do
	[[ $suite =~ ^(bookworm|trixie|sid)$ ]] || die "there is no suite '$suite' to test with, only bookworm, trixie and sid"
done
own=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/libra/torch

# packages_of SUITE prints what a chroot needs. auditwheel, with which scripts/wheel.sh checks, is in sid alone.
packages_of() {
	echo python3-torch python3-venv
	[ "$1" != sid ] || echo python3-auditwheel
}

# install_in ROOT PACKAGE... installs packages in a chroot, from its lists of packages or, if those are too old, from new ones.
install_in() {
	local root=$1 install='DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends'
	shift
	chroot "$root" /bin/sh -c "$install $* || { apt-get update -q && $install $*; }"
}

# complete SUITE installs what a chroot lacks that an earlier version of this script made.
complete() {
	local package lacks=()
	for package in $(packages_of "$1"); do
		[ -e "$cache/$1/usr/share/doc/$package" ] || lacks+=("$package")
	done
	[ ${#lacks[@]} -gt 0 ] || return 0
	say "$1: installing ${lacks[*]} in $cache/$1"
	install_in "$cache/$1" "${lacks[@]}" >"$cache/$1.log" 2>&1 || {
		tail -n 5 "$cache/$1.log" >&2
		die "the chroot of $1 lacks ${lacks[*]}, which cannot be installed for the reason above: remove $cache/$1, and it is made anew"
	}
	rm "$cache/$1.log"
}

# make_chroot SUITE makes a chroot, under another name until it is whole.
make_chroot() {
	local mirror packages new=$cache/$1.new
	mapfile -t packages < <(packages_of "$1")
	# shellcheck disable=SC2016 # apt-get's variable, not the shell's
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' 2>/dev/null | awk '!/security/ && !n++') || true
	[ -n "$mirror" ] || die "apt-get has no mirror of Debian to take packages from: add one to its sources, and run apt-get update"
	command -v debootstrap >/dev/null || die "there is no debootstrap in PATH=$PATH: as root, apt-get install debootstrap"
	say "making a chroot of $1 in $cache/$1: 300 MB to download"
	mkdir -p "$cache"
	rm -rf "$new"
	if ! {
		debootstrap --variant=minbase "$1" "$new" "$mirror" &&
			install_in "$new" "${packages[@]}"
	} >"$cache/$1.log" 2>&1; then
		tail -n 5 "$cache/$1.log" >&2
		die "the chroot of $1 cannot be made, for the reason above; all of it is in $cache/$1.log"
	fi
	chroot "$new" apt-get clean
	mv "$new" "$cache/$1"
}

work=''
trap '[ -z "$work" ] || rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# in_chroot SUITE tests a copy of this folder that is in the chroot: then paths differ in their beginning alone.
in_chroot() {
	local root=$cache/$1
	work=$(mktemp -d "$root/tmp/libra.XXXXXX")
	chmod 755 "$work"
	mkdir "$work/src" "$work/bin" "$work/tmp"
	chmod 1777 "$work/tmp"
	git ls-files -z -co --exclude-standard | while IFS='' read -r -d '' file; do
		[ ! -e "$file" ] || printf '%s\0' "$file" # one that is deleted is listed, too
	done | tar -c --null -T - | tar -x -C "$work/src"
	cp /etc/hosts "$root/etc/" # torchrun asks for this machine's address
	[ ! -e ../shared ] || ln -s "$(realpath ../shared)" "$work/shared"
	cat >"$work/bin/python3" <<-END
		#!/bin/bash
		# Python of the chroot. What is in the chroot has names there that are the rest of those here.
		root=$root
		while IFS='=' read -r -d '' name value; do
			[[ \$value != *"\$root/"* ]] || export "\$name=\${value//"\$root/"//}"
		done < <(env -0)
		here=\$(pwd -P)
		[[ \$here == "\$root/"* ]] || here=\$root/
		exec 9</proc/self/task # which has no name in the chroot
		export LIBRA_TASKS=9 PATH=/usr/sbin:/usr/bin:/sbin:/bin
		exec /usr/sbin/chroot "\$root" /usr/bin/env -C "/\${here#"\$root/"}" /usr/bin/python3 "\${@//"\$root/"//}"
	END
	chmod 755 "$work/bin/python3"
	(cd "$work/src" && LIBRA_PYTHON=$work/bin/python3 TMPDIR=$work/tmp tests) || return 1
	rm -rf "$work"
	work=''
}

tests() { CGO_ENABLED=0 LIBRA_CLIENTS_REQUIRED=1 go test -vet=off ${verbose:+"$verbose"} -count=1 -timeout 60m -run "$only" ./clients; }

failed=0
for suite in "${suites[@]}"; do
	if [ "$suite" = "$own" ]; then
		say "$suite: this machine's PyTorch $(/usr/bin/python3 -c 'import torch; print(torch.__version__)')"
		LIBRA_PYTHON=/usr/bin/python3 tests || failed=1
		continue
	fi
	if [ -n "$kept" ] && [ ! -d "$cache/$suite" ]; then
		say "$suite: left out, there is no chroot of it: make torch makes it"
		continue
	fi
	[ "$(id -u)" -eq 0 ] || die "chroot needs root: run this as root"
	if [ -d "$cache/$suite" ]; then complete "$suite"; else make_chroot "$suite"; fi
	say "$suite: PyTorch $(chroot "$cache/$suite" /usr/bin/python3 -c 'import torch; print(torch.__version__)' 2>/dev/null | tail -n 1)"
	in_chroot "$suite" || failed=1
done
exit $failed

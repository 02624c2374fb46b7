#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what developing and testing Libra needs on Debian, Ubuntu and their
# kin: the BPF and protobuf compilers, the packet tools that some tests compare
# with, and what scripts/testbed.sh uses. Skips what is there, so it is cheap
# to run again. Building and running Libra needs none of it, only Go.
#
# usage: scripts/setup.sh
set -eu

[ $# -eq 0 ] || {
	echo "usage: scripts/setup.sh" >&2
	exit 2
}

missing=

# command_in COMMAND PACKAGE and file_in FILE PACKAGE ask for a package unless
# what it brings is there, from whatever source.
command_in() {
	command -v "$1" >/dev/null || missing="$missing $2"
}
file_in() {
	[ -e "$1" ] || missing="$missing $2"
}

# Tools in /usr/sbin are not on every user's PATH.
PATH=$PATH:/usr/sbin:/sbin

command_in gcc gcc # cgo, which go test -race needs
file_in /usr/include/stdio.h libc6-dev
command_in git git
command_in make make
# go generate
command_in clang-16 clang-16
command_in llvm-strip-16 llvm-16
file_in /usr/include/bpf/bpf_helpers.h libbpf-dev
file_in /usr/include/linux/bpf.h linux-libc-dev
command_in protoc protobuf-compiler
# tests
command_in tshark tshark
command_in python3 python3 # reads exported weights
command_in shellcheck shellcheck
command_in buildah buildah # make image
file_in /usr/lib/python3/dist-packages/jsonschema python3-jsonschema
command_in strace strace
command_in promtool prometheus
command_in spin spin # make spec
command_in pkg-config pkg-config
# A Debian package is of Debian's python3, whatever other one is on the PATH.
file_in /usr/lib/python3/dist-packages/numpy python3-numpy
file_in /usr/lib/python3/dist-packages/torch python3-torch # 142 MB to download, 609 MB on disk
# make wheel, and installing what it made
file_in /usr/lib/python3/dist-packages/pip python3-pip
file_in /usr/lib/python3/dist-packages/setuptools python3-setuptools
file_in /usr/lib/python3/dist-packages/wheel python3-wheel
file_in /usr/share/doc/python3-venv python3-venv
# testbed.sh, and looking at things by hand
file_in /usr/include/xdp/xsk.h libxdp-dev # the C peers of the benchmarks
file_in /usr/include/gelf.h libelf-dev
file_in /usr/include/zmq.h libzmq3-dev
command_in g++ g++
command_in ip iproute2
command_in ethtool ethtool
command_in ping iputils-ping
command_in bpftool bpftool

want_go=$(sed -n 's/^go //p' "$(dirname "$0")/../go.mod")
if ! command -v go >/dev/null; then
	echo "setup.sh: Go is missing: install $want_go or later from https://go.dev/dl" >&2
	exit 1
fi

if [ -z "$missing" ]; then
	echo "setup.sh: nothing to install"
	exit 0
fi
if ! command -v apt-get >/dev/null; then
	echo "setup.sh: this system has no apt-get; install what these Debian packages hold:$missing" >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "setup.sh: needs root to install:$missing" >&2
	exit 1
fi
echo "setup.sh: installing:$missing"
export DEBIAN_FRONTEND=noninteractive # tshark would ask who may capture
apt-get update -q
# shellcheck disable=SC2086 # a list of words
apt-get install -q -y --no-install-recommends $missing
case " $missing " in
*" prometheus "*) # only its programs are wanted, not the service that comes with them
	systemctl disable --now prometheus >/dev/null 2>&1 || true ;;
esac

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds DPDK's dpdk-testpmd with the AF_XDP driver, which
# `libra bench engine` compares with, from the source of Debian's dpdk package
# and installs it in /usr/local/bin. Debian's own package lacks net_af_xdp.
# Takes a few minutes, on Debian and as root.
#
# usage: scripts/dpdk.sh
set -eu

[ $# -eq 0 ] || {
	echo "usage: scripts/dpdk.sh" >&2
	exit 2
}
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "dpdk.sh: needs root and Debian's apt-get" >&2
	exit 1
fi
PATH=/usr/sbin:/usr/bin:/sbin:/bin # meson wants the python3 that Debian's modules are for
# shellcheck source=/dev/null
. /etc/os-release
# An index of sources, of this script's own, beside the machine's.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
chmod 755 "$work"
# shellcheck disable=SC2016 # apt expands it
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $VERSION_CODENAME" 'Component: main' | head -n 1)
[ -n "$mirror" ] || {
	echo "dpdk.sh: apt knows no mirror of Debian $VERSION_CODENAME; run apt-get update" >&2
	exit 1
}
cat >"$work/debian.sources" <<EOF
Types: deb-src
URIs: $mirror
Suites: $VERSION_CODENAME
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
mkdir -p "$work/lists/partial"

export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends build-essential meson ninja-build pkg-config \
	python3-pyelftools libxdp-dev libbpf-dev libnuma-dev
cd "$work"
sources() {
	apt-get -q -o Dir::Etc::sourcelist="$work/debian.sources" -o Dir::Etc::sourceparts=/dev/null \
		-o Dir::State::lists="$work/lists" -o APT::Sandbox::User=root "$@"
}
sources update
sources source --download-only dpdk
mkdir dpdk
tar -x -C dpdk --strip-components=1 -f dpdk_*.orig.tar.*
meson setup build dpdk -Ddefault_library=static -Dtests=false -Ddisable_libs="*" \
	-Denable_drivers=net/af_xdp,mempool/ring,bus/vdev -Denable_apps=test-pmd
ninja -C build app/dpdk-testpmd
install build/app/dpdk-testpmd /usr/local/bin/
echo "dpdk.sh: installed /usr/local/bin/dpdk-testpmd"

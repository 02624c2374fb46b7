#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a Debian package: the program, its manual pages and completions, the systemd units,
# the license and the changes. GOARCH=arm64 makes one for another architecture. LIBRA
# names a program that runs here and goes into the package; without it, a static one is built.
#
# usage: scripts/deb.sh FOLDER
set -euo pipefail

[ $# -eq 1 ] || {
	echo "usage: scripts/deb.sh FOLDER" >&2
	exit 2
}
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
command -v dpkg-deb >/dev/null || {
	echo "deb.sh: dpkg-deb is not there: install dpkg" >&2
	exit 1
}
GO=${GO:-go}
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

# What the program says of itself comes from one that runs here.
self=${LIBRA:-$root/libra}
[ -n "${LIBRA:-}" ] || GOARCH='' $GO build -o "$self" ./cmd/libra
arch=$($GO env GOARCH)
[ "$arch" != arm ] || arch=armhf

# A tag is a release; what comes before the next one sorts before it.
version=$("$self" version --json | sed 's/.*"version":"\([^"]*\)".*/\1/')
if ! git describe --tags --exact-match --match 'v[0-9]*' >/dev/null 2>&1; then
	version="$version~$(git log -1 --format=%cd --date=format:%Y%m%d%H%M%S).$(git rev-parse --short HEAD)"
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH # manual pages and the package have the commit's date

install -d "$root"/deb/{DEBIAN,usr/bin,usr/lib/systemd/system,usr/share/man/man1,usr/share/doc/libra/prometheus,usr/share/bash-completion/completions,usr/share/fish/vendor_completions.d,usr/share/zsh/vendor-completions,etc/libra}
if [ -n "${LIBRA:-}" ]; then
	install -m 755 "$LIBRA" "$root/deb/usr/bin/libra"
else
	CGO_ENABLED=0 $GO build -trimpath -ldflags=-s -o "$root/deb/usr/bin/libra" ./cmd/libra
fi
"$self" reference man --out "$root/deb/usr/share/man/man1"
gzip -9n "$root"/deb/usr/share/man/man1/*.1
"$self" completion bash >"$root/deb/usr/share/bash-completion/completions/libra"
"$self" completion fish >"$root/deb/usr/share/fish/vendor_completions.d/libra.fish"
"$self" completion zsh >"$root/deb/usr/share/zsh/vendor-completions/_libra"
"$self" config example >"$root/deb/usr/share/doc/libra/cluster.yaml"
install -m 644 packaging/systemd/*.service "$root/deb/usr/lib/systemd/system"
install -m 644 packaging/prometheus/*.yml "$root/deb/usr/share/doc/libra/prometheus"
gzip -9n >"$root/deb/usr/share/doc/libra/changelog.gz" <<END
libra ($version) unstable; urgency=medium

  * CHANGELOG.md.gz has the changes.

 -- The Libra authors <libra@localhost>  $(date -Rd "@$SOURCE_DATE_EPOCH")
END
year=$(date -d "@$SOURCE_DATE_EPOCH" +%Y)
gzip -9nc CHANGELOG.md >"$root/deb/usr/share/doc/libra/CHANGELOG.md.gz"
cat >"$root/deb/usr/share/doc/libra/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: libra
Source: https://github.com/libra-ina/libra

Files: *
Copyright: $year the Libra authors
License: Apache-2.0
 The text of this license is in /usr/share/common-licenses/Apache-2.0.

Files: bpf/*.c bpf/*.h
Copyright: $year the Libra authors
License: Apache-2.0 or GPL-2
 The texts of these licenses, of which you may choose one, are in
 /usr/share/common-licenses/Apache-2.0 and /usr/share/common-licenses/GPL-2.
END
# One file runs on each system of its architecture.
install -d "$root/deb/usr/share/lintian/overrides"
echo 'libra: statically-linked-binary' >"$root/deb/usr/share/lintian/overrides/libra"
chmod -R u=rwX,go=rX "$root/deb"

cat >"$root/deb/DEBIAN/control" <<END
Package: libra
Version: $version
Architecture: $arch
Maintainer: The Libra authors <libra@localhost>
Section: net
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root/deb" | cut -f1)
Homepage: https://github.com/libra-ina/libra
Description: in-network gradient aggregation for sparse training
 Libra sums the gradients of the hottest parameters of a sparse model inside
 the network, in an XDP program or a P4 switch, and hands the parameter server
 one sum instead of one message from each worker.
END
find "$root/deb" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zxz -z1 --build "$root/deb" "$out/libra_${version}_$arch.deb"

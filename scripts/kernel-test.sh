#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of the XDP programs and of the engine in another kernel than
# this machine's: one of Debian's, by default the newest 6.1, which is the oldest
# that Libra supports. Its verifier refuses what later ones take. The machine is
# emulated by QEMU without help of the processor, so it takes some minutes and
# its speed says nothing; it needs no root and touches no network of the host.
# scripts/kernel-matrix.sh runs it for all kernels, architectures and cards.
#
# usage: scripts/kernel-test.sh [-a ARCH] [-k SERIES] [-n CARD] [-f FRAMES] [-r REGEXP] [-s SECONDS] [-t SECONDS]
#   -a ARCH      architecture of the machine: amd64 or arm64 (amd64)
#   -k SERIES    series of kernels, the newest of which is taken, or newest, the newest of
#                all (6.1; newest with -n). One that apt-get does not know is looked for in
#                other releases of Debian
#   -n CARD      run the tests of zero-copy mode instead, on two network cards of
#                this kind: igb (Linux 6.14 has zero-copy for it) or virtio-net
#                (Linux 7.2 has, 6.12 has not, and none has on arm64)
#   -f FRAMES    random frames that XDP program and model are compared on (10000)
#   -r REGEXP    run only the tests that match; there must be one (whether
#                a subtest matches is known only after its test has run)
#   -s SECONDS   how long packets flow in trouble in zero-copy mode (20)
#   -t SECONDS   time limit of the emulation (3600)
# It takes Go, and of Debian cpio and QEMU, which root has installed: Debian 12's will do, but
# for igb, which needs QEMU 8.
# Exit status: 0 if all passed, 1 if a test failed, 2 if nothing was run,
# 124 if time ran out. Kernels are kept in ~/.cache/libra.
set -euo pipefail

# Paths of the packages whose tests run there.
packages=(bpf afxdp)
# Tests of what 6.1 lacks: XDP features and receive hints (6.3), multi-buffer (6.6), TX metadata (6.8).
newer='^(TestForwardsOnlyToPortsThatTransmit|TestLeavesPortsWithoutXDPToTheBridge|TestJumbo.*|TestTxChecksumAndTimestamp|TestRxHints|ExampleConfig_multiBuffer)$'

arch=amd64 series='' frames=10000 only='' limit=3600 card='' soak=20
while getopts a:k:n:f:r:s:t:h option; do
	case $option in
	a) arch=$OPTARG ;;
	k) series=$OPTARG ;;
	n) card=$OPTARG ;;
	f) frames=$OPTARG ;;
	r) only=$OPTARG ;;
	s) soak=$OPTARG ;;
	t) limit=$OPTARG ;;
	h) sed -n '/^# usage/,/^# It takes/{s/^# //;/^It takes/d;p}' "$0" && exit ;;
	*) exit 2 ;;
	esac
done
cd "$(dirname "$0")/.."

say() { echo "kernel-test: $*"; }
die() {
	echo "kernel-test: $*" >&2
	exit 2
}
for number in "$frames" "$soak" "$limit"; do
	[[ $number =~ ^[1-9][0-9]*$ ]] || die "'$number' is not a positive number"
done
modules=(veth udp_tunnel ip6_udp_tunnel vxlan llc stp bridge) flavour=cloud-$arch cpus=2 device='' drivers_igb=(i2c-algo-bit igb)
case $arch in
amd64)
	qemu=qemu-system-x86_64 from=qemu-system-x86 serial=ttyS
	machine=(-M q35 -accel "tcg,thread=multi" -cpu max)
	drivers_igb=(dca "${drivers_igb[@]}")
	;;
arm64)
	qemu=qemu-system-aarch64 from=qemu-system-arm serial=ttyAMA
	machine=(-M virt -accel "tcg,thread=multi" -cpu neoverse-n1)
	;;
*) die "there is no architecture '$arch' to emulate, only amd64 and arm64" ;;
esac
drivers_virtio=(failover net_failover virtio_net)
packaged=("${modules[@]}" "${drivers_igb[@]}" "${drivers_virtio[@]}") # for any card, so that one download does
case $card in
'') : "${series:=6.1}" "${only:=.}" ;;
igb)
	modules+=("${drivers_igb[@]}") device=igb
	# igb of Linux 6 wakes the wrong interrupt if there are two CPUs.
	[[ $series != 6.* ]] || cpus=6
	;;
virtio-net)
	# virtqueue_map_single_attrs refuses to map the header of packets, a variable of the driver's module.
	[ "$arch" = amd64 ] || die "the driver of virtio-net has no zero-copy mode on $arch; use -n igb"
	modules+=("${drivers_virtio[@]}")
	# The driver takes no XDP program while it may get merged packets, and has zero-copy
	# only where it maps memory for the device (VIRTIO_F_ACCESS_PLATFORM).
	device=virtio-net-pci,mq=on,iommu_platform=on,guest_tso4=off,guest_tso6=off,guest_ufo=off,guest_ecn=off,guest_csum=off
	;;
*) die "there is no network card '$card' to emulate, only igb and virtio-net" ;;
esac
[ -z "$card" ] || packages=(afxdp link) flavour=$arch only=${only:-^TestZeroCopy}
[ "$series" = 6.1 ] || newer='^$'
[ "$series" != newest ] || series=''
[ $((OPTIND - 1)) -eq $# ] || die "unexpected argument '${!OPTIND}'; -h shows the usage"

# The selection comes first, because all else takes minutes.
tests() { grep -rhoP --include='*_test.go' '^func \K(Test|Example|Fuzz)\w*' "${packages[@]}" | grep -vP -- "$newer"; }
found=0
tests | grep -P -- "${only%%/*}" >/dev/null || found=$?
[ "$found" -lt 2 ] || die "'$only' is no regular expression, for the reason above: quote what it has of ( [ * + ? with a backslash"
[ "$found" -eq 0 ] ||
	die "no test of ${packages[*]}${series:+ for Linux $series} matches '$only'; 'go test -list . ${packages[*]/#/./}' shows their names"

# What runs here.
command -v go >/dev/null || die "there is no go in PATH=$PATH to compile the tests with: install Go" \
	"$(sed -n 's/^go //p' go.mod) or later from https://go.dev/dl, and add its bin directory to PATH (sudo has a PATH of its own)"
command -v apt-get >/dev/null || die "there is no apt-get in PATH=$PATH to get Debian's kernels with: run this on Debian or Ubuntu"
options=(-o APT::Sandbox::User=root)
# apt_get ARGUMENT... runs apt-get, or says what is in its way.
apt_get() {
	local said failed=''
	{ said=$(apt-get -q "${options[@]}" "$@" 2>&1 >&3); } 3>&1 || failed=yes
	[ -z "$said" ] || echo "$said" >&2
	[ -n "$failed" ] || return 0
	said=$(grep -o -m 1 'Could not get lock.*' <<<"$said") || die "'apt-get $*' failed, for the reason above"
	die "'apt-get $*' failed. $said. Wait until the program that holds it has ended, then run this again"
}
root() { [ "$(id -u)" -eq 0 ]; }

# igb needs QEMU 8, a pair of cards and arm64's processor 7.2, which is Debian 12's.
needs=''
[ "$card$arch" = amd64 ] || needs=7.2
[ "$card" != igb ] || needs=8.0
enough() { [ "$(printf '%s\n' "$needs" "$1" | sort -V | head -n 1)" = "$needs" ]; }
# suite prints which of the suites that apt-get knows has a QEMU that is new enough.
suite() {
	apt-cache madison "$from" | while IFS=' |' read -r _ release _ suite _; do
		release=${release#*:}
		enough "${release%%[+~-]*}" && echo "${suite%%/*}" && break
	done
}
release=$("$qemu" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\.[0-9]*\).*/\1/p') || true
missing=() install=(install --no-install-recommends)
[ -n "$release" ] && enough "$release" || missing+=("$from")
command -v cpio >/dev/null || missing+=(cpio)
if [ ${#missing[@]} -gt 0 ]; then
	! root || apt_get update
	if [ "${missing[0]}" = "$from" ]; then
		suite=$(suite) || true
		[ -n "$suite" ] || die "this needs QEMU${needs:+ $needs or later}, ${release:+$qemu is $release, }and apt-get has none in package $from." \
			"Debian 12 has one in its backports: add the suite bookworm-backports of your mirror to apt's sources, run apt-get update as root, then this again"
		install+=(-t "$suite")
	fi
	root || die "${missing[*]} must be installed${needs:+, QEMU in version $needs or later}. As root: apt-get ${install[*]} ${missing[*]}"
	say "installing ${missing[*]}"
	DEBIAN_FRONTEND=noninteractive apt_get "${install[@]}" -y "${missing[@]}"
fi
[ "$card" != virtio-net ] || ! "$qemu" -device virtio-net-pci,help | grep guest_uso >/dev/null || device+=,guest_uso4=off,guest_uso6=off # QEMU 8.2

cache=${XDG_CACHE_HOME:-$HOME/.cache}/libra
[ "$arch" = amd64 ] || cache+=/$arch
mkdir -p "$cache"
work=$(mktemp -d "$cache/kernel-test.XXXXXX")
emulator=
clean() {
	[ -z "$emulator" ] || kill "$emulator" 2>/dev/null || true
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# fetch PACKAGE PATTERN... keeps those files of a Debian package in the cache.
fetch() {
	local package=$1 wanted absent=
	shift
	for wanted in "$@"; do
		[ -n "$(find "$cache/$package" -name "${wanted##*/}" -print -quit 2>/dev/null)" ] || absent=$wanted
	done
	[ -n "$absent" ] || return 0
	rm -rf "${cache:?}/$package" # an earlier run wanted less of it
	say "downloading $package"
	mkdir "$work/$package"
	(cd "$work" && apt_get download "$package") || die "there is no $package: if Debian has a later one, run apt-get update"
	dpkg-deb --fsys-tarfile "$work/$package"_*.deb | tar -x -C "$work/$package" --wildcards "$@"
	mv "$work/$package" "$cache/"
}

names() { apt-cache "${options[@]}" pkgnames "$1"; }

newest() {
	{ names "linux-image-$series"; find "$cache" -maxdepth 1 -name 'linux-*' -printf '%f\n' | sed 's/^linux-modules-/linux-image-/'; } |
		grep -E "^linux-image-${series:+${series//./\\.}\\.}[0-9.]+([+-][a-z0-9]+)?-$flavour$" | sort -V | tail -n 1
}
# elsewhere makes apt-get use those suites of Debian, for the architecture, instead of
# what this machine uses, and write to the cache only.
elsewhere() {
	local dir=$cache/apt mirror
	# shellcheck disable=SC2016 # apt-get's variable, not the shell's
	mirror=$(apt_get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' | awk '!/security/ && !n++')
	[ -n "$mirror" ] || die "apt-get has no mirror of Debian to take kernels from: add one to its sources"
	mkdir -p "$dir"/{state/lists/partial,archives/partial}
	touch "$dir/status"
	printf "deb [arch=$arch signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror %s main\n" "$@" >"$dir/sources.list"
	options+=(
		-o "APT::Architecture=$arch" -o "APT::Architectures::=$arch" -o "Dir::State=$dir/state" -o "Dir::State::status=$dir/status"
		-o "Dir::Cache=$dir" -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=/dev/null
	)
	if [ -z "$(find "$dir/updated" -mtime 0 2>/dev/null)" ]; then
		say "looking at what Debian has for $arch in $*"
		apt_get update
		touch "$dir/updated"
	fi
}
kernel=''
if [ "$arch" != "$(dpkg --print-architecture)" ]; then
	elsewhere bookworm trixie unstable
	kernel=$(newest) || true
elif [ -n "$series" ]; then
	[ -n "$(names "linux-image-$series")" ] || ! root || apt_get update
	kernel=$(newest) || true
fi
if [ -z "$kernel" ] && [ "$arch" = "$(dpkg --print-architecture)" ]; then
	elsewhere unstable
	kernel=$(newest) || true
fi
[ -n "$kernel" ] || die "neither this machine's apt-get nor Debian's other releases have a linux-image-${series:-*}.*-$flavour; choose another series with -k"
version=${kernel#linux-image-}
files=("${modules[@]/%/.ko*}")
[ -z "$card" ] || files=("${packaged[@]/%/.ko*}")
if [ -d "$cache/linux-modules-$version" ] || [ -n "$(names "linux-modules-$version")" ]; then # packaged apart from 7.0 on
	fetch "linux-binary-$version" '*/vmlinuz'
	fetch "linux-modules-$version" "${files[@]/#/*/}"
else
	fetch "$kernel" './boot/vmlinuz-*' "${files[@]/#/*/}"
fi
fetch busybox-static '*bin/busybox'

# The machine's only file system is an archive in its memory.
root=$work/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,src}
cp "$cache"/busybox-static/{,usr/}bin/busybox "$root/bin/" 2>/dev/null || true
for module in "${modules[@]}"; do
	find "$cache"/linux-*-"$version" -name "$module.ko*" -exec cp {} "$root/" \;
	[ ! -e "$root/$module.ko.xz" ] || unxz "$root/$module.ko.xz"
done
find . -type d -name testdata -prune -print0 | tar -c --null -T - | tar -x -C "$root/src" # some read other packages'
for package in "${packages[@]}"; do
	say "compiling the tests of $package"
	mkdir -p "$root/src/$package"
	CGO_ENABLED=0 GOOS=linux GOARCH=$arch go test -c -o "$root/src/$package/test" "./$package" ||
		die "the tests of $package cannot be compiled for $arch; go says why, above"
done

cat >"$root/init" <<EOF
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /tmp
uname -srvm
for module in ${modules[*]}; do insmod /\$module.ko; done
ip link set lo up
for card in /sys/class/net/eth*; do
	[ -e \$card ] || continue
	name=\${card##*/}
	echo 1 >/proc/sys/net/ipv6/conf/\$name/disable_ipv6
	ip link set \$name up
	AFXDP_TEST_NICS=\${AFXDP_TEST_NICS:+\$AFXDP_TEST_NICS,}\$name
	export AFXDP_TEST_NICS
done
failed=
for package in ${packages[*]}; do
	flags=
	[ \$package != bpf ] || flags='-frames $frames -deliveries 400000'
	[ \$package != afxdp ] || flags='-soak ${soak}s'
	echo "== \$package"
	cd /src/\$package
	./test -test.v -test.run ${only@Q} -test.skip ${newer@Q} -test.timeout ${limit}s \$flags || failed="\$failed \$package"
done
echo 1 >/proc/sys/kernel/printk # nothing else on this line
echo
echo "result of kernel-test:\$failed"
stty -echo # when the line has left
poweroff -f
EOF
chmod +x "$root/init"
(cd "$root" && find . | cpio -o -H newc -R 0:0 --quiet | gzip -1) >"$work/initramfs"

say "emulating a machine with $kernel, for at most $limit s; it takes some 15 s to boot, and long in each test that loads the program"
devices=()
if [ -n "$card" ]; then
	for i in 0 1; do
		wire=dgram,id=wire$i,local.type=unix,local.path=$work/end$i,remote.type=unix,remote.path=$work/end$((1 - i))
		if [ "$card" = virtio-net ]; then
			# A full socket would hold the sender up, and in QEMU 10 fail an assertion when
			# its queue is reset. Datagrams over loopback are dropped instead.
			wire=dgram,id=wire$i
			for end in local remote; do
				wire+=,$end.type=inet,$end.host=127.77.$(($$ >> 8 & 255)).$(($$ & 255)),$end.port=$((9000 + i))
				i=$((1 - i))
			done
		fi
		devices+=(
			-device "pcie-root-port,id=port$i,chassis=$((i + 1))"
			-netdev "$wire"
			-device "$device,bus=port$i,netdev=wire$i,mac=02:00:00:00:00:0$i"
		)
	done
fi
mkfifo "$work/console"
# Of subtests only failures are of interest.
sed -u -e 's/\r$//' -e "/^ *--- PASS: .*\//{w $work/subtests" -e 'd}' -e '/^=== [A-Z]* .*\//d' \
	-e "/^--- PASS/w $work/passed" -e "/^result of kernel-test:/{w $work/result" -e 'd}' <"$work/console" &
reader=$!
# no_timer_check: on a machine that is busy, the kernel takes the timer of an emulated PC for broken.
timeout "$limit" "$qemu" "${machine[@]}" -smp "$cpus" -m 2048 \
	-nodefaults -no-user-config -display none -no-reboot "${devices[@]}" \
	-kernel "$(find "$cache"/linux-*-"$version" -name 'vmlinuz*' | head -n 1)" -initrd "$work/initramfs" \
	-append "console=${serial}0 quiet panic=-1 no_timer_check default_hugepagesz=1G hugepagesz=2M hugepages=16" \
	-serial stdio </dev/null >"$work/console" &
emulator=$!
status=0
wait "$emulator" || status=$?
emulator=
wait "$reader"

if [ "$status" -eq 124 ]; then
	say "FAIL: time ran out after $limit s in the test that is shown last; -t allows more"
	exit 124
fi
result=$(cat "$work/result" 2>/dev/null || true)
result=${result#result of kernel-test}
case $result in
:) ;;
:*) say "FAIL$result in $kernel${card:+ on $card}" && exit 1 ;;
*) say "FAIL: the machine stopped without a result (QEMU's status $status)" && exit 1 ;;
esac
ran=passed
case $only in */*) ran=subtests ;; esac # the test itself passes without any
[ -s "$work/$ran" ] || die "FAIL: nothing ran in $kernel: the tests that match '$only' were skipped there, for the reasons above, or are not for $arch"
say "PASS: ${packages[*]} in $kernel${card:+ on $card}"

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A test bed to play with by hand: a switch and some hosts in named network
# namespaces, wired like the one that `libra demo` builds for itself (see
# internal/linux/testbed), but lasting until it is taken down.
set -eu

prefix=libra-           # of the namespaces' names
network=10.77.0         # the switch is .1, host i is .(2+i)

usage() {
	cat <<'USAGE'
Usage:
  scripts/testbed.sh up [-n HOSTS] [-q QUEUES] [-m MTU] [-t]
  scripts/testbed.sh status
  scripts/testbed.sh exec NODE COMMAND [ARGUMENT...]
  scripts/testbed.sh down

  up      builds the bed; where there is one already, replaces it
            -n  number of hosts, 1 to 250 (default 2)
            -q  queues at each end of a cable, 1 to 64 (default 1)
            -m  MTU in bytes, 576 to 65535 (default 1500)
            -t  threaded NAPI: frames are received on another CPU
  status  lists the nodes with their addresses and attached XDP programs
  exec    runs a command in the namespace of a node: switch, host0, host1, ...
  down    ends all processes in the namespaces and removes them; no bed, no error

The switch has the bridge br0 (10.77.0.1) and a port port0, port1, ... to each
host; host i has the interface host<i> (10.77.0.<2+i>). Needs root, iproute2 and
ethtool.

Example:
  sudo scripts/testbed.sh up -n 3
  sudo scripts/testbed.sh exec host0 ping -c 3 10.77.0.3
  sudo scripts/testbed.sh down
USAGE
}

die() {
	echo "testbed.sh: $*" >&2
	exit 1
}

misuse() {
	echo "testbed.sh: $*" >&2
	usage >&2
	exit 2
}

need_root() {
	[ "$(id -u)" -eq 0 ] || die "needs root: sudo $0 ..."
}

need() {
	for tool in "$@"; do
		command -v "$tool" >/dev/null || die "$tool is missing; scripts/setup.sh installs it"
	done
}

# in_range NAME VALUE MIN MAX
in_range() {
	case $2 in
	'' | *[!0-9]*) misuse "$1 is '$2', want a number from $3 to $4" ;;
	esac
	if [ "$2" -lt "$3" ] || [ "$2" -gt "$4" ]; then
		misuse "$1 is $2, want $3 to $4"
	fi
}

# nodes prints the names of the bed's nodes.
nodes() {
	ip netns list | sed -n "s/^$prefix\\(switch\\|host[0-9]*\\)\\( .*\\)*\$/\\1/p" | sort -V
}

# namespace NODE creates a namespace without IPv6, so that nothing but what is
# sent crosses the cables.
namespace() {
	ip netns add "$prefix$1"
	ipv6=/proc/sys/net/ipv6/conf/default/disable_ipv6
	ip netns exec "$prefix$1" sh -c "[ ! -w $ipv6 ] || echo 1 >$ipv6"
	ip -n "$prefix$1" link set lo up
}

# tune NODE INTERFACE prepares an end of a cable, which must be up, for XDP:
# complete checksums, and a NAPI context without a program. The reasons are in
# internal/linux/testbed/device_linux.go.
tune() {
	ip netns exec "$prefix$1" ethtool -K "$2" tx off gro on >/dev/null
	# ip netns exec mounts a /sys that shows the namespace.
	[ -z "$threaded" ] || ip netns exec "$prefix$1" sh -c "echo 1 >/sys/class/net/$2/threaded"
}

# cable I wires host I to the switch.
cable() {
	host=host$1
	port=port$1
	offset=$(($1 + 2))
	last=$(printf '%02x' "$offset")
	namespace "$host"
	ip -n "${prefix}switch" link add "$port" address "02:4c:42:01:00:$last" mtu "$mtu" \
		numtxqueues "$queues" numrxqueues "$queues" master br0 type veth \
		peer name "$host" address "02:4c:42:00:00:$last" mtu "$mtu" \
		numtxqueues "$queues" numrxqueues "$queues" netns "$prefix$host"
	ip -n "$prefix$host" address add "$network.$offset/24" dev "$host"
	ip -n "${prefix}switch" link set "$port" up
	ip -n "$prefix$host" link set "$host" up
	tune switch "$port"
	tune "$host" "$host"
}

# remove_after_failure: a half-built bed is worse than none.
remove_after_failure() {
	code=$?
	[ "$code" -eq 0 ] || remove
	exit "$code"
}

up() {
	hosts=2 queues=1 mtu=1500 threaded=
	while getopts n:q:m:t option; do
		case $option in
		n) hosts=$OPTARG ;;
		q) queues=$OPTARG ;;
		m) mtu=$OPTARG ;;
		t) threaded=yes ;;
		*) misuse "see above" ;;
		esac
	done
	shift $((OPTIND - 1))
	[ $# -eq 0 ] || misuse "unexpected argument '$1'"
	in_range "number of hosts" "$hosts" 1 250
	in_range "number of queues" "$queues" 1 64
	in_range MTU "$mtu" 576 65535
	need_root
	need ip ethtool

	remove
	trap remove_after_failure EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM
	namespace switch
	ip -n "${prefix}switch" link add br0 address 02:4c:42:00:00:01 mtu "$mtu" type bridge mcast_snooping 0
	ip -n "${prefix}switch" address add "$network.1/24" dev br0
	ip -n "${prefix}switch" link set br0 up
	i=0
	while [ "$i" -lt "$hosts" ]; do
		cable "$i"
		i=$((i + 1))
	done
	echo "up: switch and $hosts host(s); $0 status shows them"
}

status() {
	need ip
	found=$(nodes)
	if [ -z "$found" ]; then
		echo "down"
		return
	fi
	need_root
	for node in $found; do
		echo "$node:"
		ip -n "$prefix$node" -o link show | awk '$2 != "lo:" {
			name = $2; sub(/[:@].*/, "", name)
			mac = xdp = "-"
			for (i = 3; i < NF; i++) {
				if ($i == "mtu") mtu = $(i + 1)
				if ($i == "state") state = $(i + 1)
				if ($i == "link/ether") mac = $(i + 1)
				if ($i ~ /^(xdp|xdpgeneric|xdpoffload|xdpmulti)$/) xdp = $i
			}
			printf "  %-8s %-17s mtu %-5s %-7s xdp: %s\n", name, mac, mtu, state, xdp
		}'
		ip -n "$prefix$node" -o -4 address show scope global | awk '{ printf "  %-8s %s\n", $2, $4 }'
		pids=$(ip netns pids "$prefix$node" | tr '\n' ' ')
		[ -z "$pids" ] || echo "  processes: $pids"
	done
}

run() {
	[ $# -ge 2 ] || misuse "exec needs a node and a command"
	need_root
	need ip
	node=$1
	shift
	nodes | grep -qx "$node" || die "no node '$node'; there are: $(nodes | tr '\n' ' ')(scripts/testbed.sh up builds a bed)"
	exec ip netns exec "$prefix$node" "$@"
}

# remove takes down whatever there is of a bed.
remove() {
	for node in $(nodes); do
		for pid in $(ip netns pids "$prefix$node"); do
			kill -9 "$pid" 2>/dev/null || true # it may have ended by itself
		done
		ip netns del "$prefix$node"
	done
}

down() {
	[ $# -eq 0 ] || misuse "unexpected argument '$1'"
	need_root
	need ip
	remove
	echo "down"
}

[ $# -gt 0 ] || misuse "no command"
command=$1
shift
case $command in
up) up "$@" ;;
down) down "$@" ;;
status) status ;;
exec) run "$@" ;;
help | -h | --help) usage ;;
*) misuse "unknown command '$command'" ;;
esac

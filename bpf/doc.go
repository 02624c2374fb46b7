// Package bpf holds Libra's XDP programs and loads them.
//
// [Aggregator] is the aggregator's data plane on ordinary network interfaces:
// the program answers the frames that are addressed to the aggregator, forwards
// Libra frames between hosts whose address is in its table, and passes
// everything else to the kernel untouched. What it does with a frame is defined
// by package aggregator, whose Model it equals bit for bit.
//
// [Steer] brings the Libra frames of a host to its AF_XDP sockets.
//
// The programs need Linux 6.1 on amd64 or arm64, and CAP_BPF, CAP_NET_ADMIN and
// CAP_PERFMON. They work in native and in generic mode on interfaces whose frames fit one
// buffer. A VLAN tag must be in the frame, not in the packet's metadata: switch
// off VLAN offload (ethtool -K IFACE rxvlan off) where Libra frames are tagged.
package bpf

// SPDX-License-Identifier: Apache-2.0

// Package bpf holds Libra's XDP programs and loads them.
//
// [Aggregator] is the aggregator's data plane on ordinary network interfaces:
// the program answers the frames that are addressed to the aggregator, forwards
// Libra frames between hosts whose address is in its table, and passes
// everything else to the kernel untouched. What it does with a frame is defined
// by package aggregator, whose Model it equals bit for bit.
//
// The result of a round leaves by an XDP redirect to all ports of its job, so the
// drivers of these ports must support XDP transmission; a veth does if its peer
// has an XDP program or GRO switched on. The frame goes to a multicast address
// (wire.AllOf): a host's network card, unlike a veth, lets it in only if the
// host has joined it or the interface is in allmulticast mode.
//
// The programs need Linux 6.1 on amd64 or arm64, and CAP_BPF, CAP_NET_ADMIN and
// CAP_PERFMON; also CAP_SYS_ADMIN if jobs with rounds are managed from another
// network namespace than that of the interfaces. They work in native and in
// generic mode on interfaces whose frames fit one buffer. A VLAN tag must be in the frame, not in the packet's metadata: switch
// off VLAN offload (ethtool -K IFACE rxvlan off) where Libra frames are tagged.
//
// # Units
//
// Slots are those of package aggregator. Counters count frames, or pairs where their
// name has it; a budget is costly frames a second for each sender.
//
// # Errors
//
// [Open] and [Aggregator.Attach] return errors that wrap [ErrPermission] or
// [afxdp.ErrPermission] with the missing capability, [afxdp.ErrProgramAttached] where another program is on the interface, or
// [ErrNamespace]; the verifier's log is in an [*ebpf.VerifierError]. Calls of the
// [aggregator.Plane] return the errors of package aggregator.
//
// # Ownership and goroutines
//
// The Aggregator owns its programs, maps and attachments, and they last as long as the
// process holds it: nothing is pinned, and a process that is killed leaves none of
// them. The Slots of a Bank are mapped memory of the kernel, valid until Clear. Methods may
// be called from several goroutines.
package bpf

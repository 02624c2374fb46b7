// SPDX-License-Identifier: Apache-2.0

// Package bpf holds Libra's XDP programs and loads them.
//
// [Aggregator] is the aggregator's data plane on ordinary network interfaces: the program answers
// frames that are addressed to the aggregator, forwards Libra frames between hosts in its table,
// and passes everything else to the kernel unchanged. Package aggregator defines its behaviour: it
// equals the package's Model bit for bit.
//
// The program redirects the result of a round to all ports of its job, so the drivers of these
// ports must support XDP transmission; a veth does if its peer has an XDP program or GRO enabled.
// The frame goes to a multicast address (wire.AllOf): a host's network card, unlike a veth, accepts
// it only if the host has joined the group or the interface is in allmulticast mode.
//
// The programs need Linux 6.1 on amd64 or arm64, and CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; also
// CAP_SYS_ADMIN if jobs with rounds are managed from a network namespace other than that of the
// interfaces. They work in native and generic mode on interfaces whose frames fit one buffer. A
// VLAN tag must be in the frame, not in the packet's metadata: disable VLAN offload (ethtool -K
// IFACE rxvlan off) where Libra frames are tagged.
//
// # Units
//
// Slots are those of package aggregator. Counters count frames, or pairs if their name contains it;
// a budget is a number of costly frames per second and sender.
//
// # Errors
//
// [Open] and [Aggregator.Attach] return errors that wrap [ErrPermission] or [afxdp.ErrPermission]
// with the missing capability, [afxdp.ErrProgramAttached] if the interface has another program, or
// [ErrNamespace]; the verifier's log is in an [*ebpf.VerifierError]. Methods of [aggregator.Plane]
// return the errors of package aggregator.
//
// # Ownership and goroutines
//
// The Aggregator owns its programs, maps and attachments. Nothing is pinned, so they end with the
// process, even if it is killed. The Slots of a Bank are mapped kernel memory, valid until Clear.
// Methods may be called from several goroutines.
package bpf

//go:build linux

package afxdp

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// XDP verdicts and offsets of struct xdp_md (linux/bpf.h).
const (
	xdpPass = 2

	mdData     = 0
	mdDataEnd  = 4
	mdDataMeta = 8
	mdRxQueue  = 16

	pass = "pass" // label
)

// newXSKMap creates the map that the built-in program redirects through.
func newXSKMap(queues int) (*ebpf.Map, error) {
	queues = cmp.Or(queues, 256)
	if queues < 0 || queues > 1<<16 {
		return nil, fmt.Errorf("%w: AttachConfig.Queues %d", ErrConfig, queues)
	}
	xsks, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "afxdp_sockets", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if err != nil {
		return nil, explainLoad("create XSKMAP", err)
	}
	return xsks, nil
}

// loadRedirect builds and loads the built-in program: a few instructions, so
// they are written here rather than compiled, and the package needs no clang.
func loadRedirect(cfg AttachConfig, xsks *ebpf.Map, ifindex int) (*ebpf.Program, error) {
	spec := &ebpf.ProgramSpec{Name: "afxdp_redirect", Type: ebpf.XDP, License: "Dual BSD/GPL"}
	if cfg.MultiBuffer {
		spec.Flags |= unix.BPF_F_XDP_HAS_FRAGS
	}
	var hints asm.Instructions
	if cfg.Hints {
		if cfg.Mode == AttachGeneric {
			return nil, fmt.Errorf("%w: AttachConfig.Hints come from the driver, not in generic mode", ErrConfig)
		}
		find, err := kernelFunctions()
		if err != nil {
			return nil, err
		}
		if hints, err = hintsProgram(find); err != nil {
			return nil, err
		}
		// The hints come from functions of this very driver.
		spec.Flags |= unix.BPF_F_XDP_DEV_BOUND_ONLY
		spec.Ifindex = uint32(ifindex)
	}
	spec.Instructions = redirectProgram(xsks.FD(), cfg.UDPPort, hints)
	prog, err := ebpf.NewProgram(spec)
	switch {
	case err == nil:
		return prog, nil
	case cfg.Hints && errors.Is(err, unix.EOPNOTSUPP):
		err = &FeatureError{Feature: "receive hints", Since: "6.3", Needs: "a driver with XDP metadata", Err: err}
	case cfg.MultiBuffer && errors.Is(err, unix.EINVAL):
		err = &FeatureError{Feature: "XDP programs for several buffers", Since: oldestKernel, Err: err}
	}
	return nil, explainLoad("load XDP program", err)
}

func explainLoad(what string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %s needs CAP_BPF and CAP_NET_ADMIN: %w", ErrPermission, what, err)
	}
	return fmt.Errorf("afxdp: %s: %w", what, err)
}

// redirectProgram is, in C:
//
//	if (udpPort && !is_udp_to(ctx, udpPort))
//		return XDP_PASS;
//	(hints, see hintsProgram)
//	return bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS);
//
// The last argument is the verdict for a queue without a socket.
func redirectProgram(xsks int, udpPort uint16, hints asm.Instructions) asm.Instructions {
	insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	if udpPort != 0 {
		insns = append(insns, udpFilter(udpPort)...)
	}
	insns = append(insns, hints...)
	insns = append(insns,
		asm.LoadMem(asm.R2, asm.R6, mdRxQueue, asm.Word),
		asm.LoadMapPtr(asm.R1, xsks),
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	)
	if udpPort != 0 { // the verifier refuses instructions that nothing jumps to
		insns = append(insns, asm.Mov.Imm(asm.R0, xdpPass).WithSymbol(pass), asm.Return())
	}
	return insns
}

// udpFilter jumps to "pass" unless the packet is UDP to the port. It expects
// the context in R6. R2 is the current header, R3 the packet's end, R4 and R5
// hold fields. Multi-byte fields are loaded in network order and compared with
// constants swapped accordingly.
func udpFilter(port uint16) asm.Instructions {
	const (
		ethIPv4, ethIPv6, ethVLAN = 0x0800, 0x86dd, 0x8100
		plainIPv4                 = 0x45 // version 4, five words: no options
		protoUDP                  = 17
		moreFragsOrOffset         = 0x3fff // all of the field but "don't fragment"
	)
	// need checks that n bytes from R2 on are in the packet.
	need := func(n int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R5, asm.R2),
			asm.Add.Imm(asm.R5, n),
			asm.JGT.Reg(asm.R5, asm.R3, pass),
		}
	}
	byteAt := func(off int16) asm.Instruction { return asm.LoadMem(asm.R4, asm.R2, off, asm.Byte) }
	half := func(off int16) asm.Instruction { return asm.LoadMem(asm.R4, asm.R2, off, asm.Half) }
	var p asm.Instructions
	add := func(more ...asm.Instruction) { p = append(p, more...) }

	add(
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
	)
	// Ethernet, with room for a VLAN tag: no IP packet is shorter than that.
	add(need(18)...)
	add(
		half(12),
		asm.HostTo(asm.BE, asm.R4, asm.Half),
		asm.JNE.Imm(asm.R4, ethVLAN, "untagged"),
		half(16),
		asm.HostTo(asm.BE, asm.R4, asm.Half),
		asm.Add.Imm(asm.R2, 4),
		asm.Add.Imm(asm.R2, 14).WithSymbol("untagged"),
		asm.JEq.Imm(asm.R4, ethIPv6, "ipv6"),
		asm.JNE.Imm(asm.R4, ethIPv4, pass),
	)
	// IPv4: whole datagrams only, since fragments carry no ports, and no options.
	add(need(20 + 8)...)
	add(
		byteAt(0),
		asm.JNE.Imm(asm.R4, plainIPv4, pass),
		byteAt(9),
		asm.JNE.Imm(asm.R4, protoUDP, pass),
		half(6),
		asm.HostTo(asm.BE, asm.R4, asm.Half),
		asm.And.Imm(asm.R4, moreFragsOrOffset),
		asm.JNE.Imm(asm.R4, 0, pass),
		half(20+2),
		asm.Ja.Label("port"),
	)
	ipv6 := need(40 + 8)
	ipv6[0] = ipv6[0].WithSymbol("ipv6")
	add(ipv6...)
	add(
		byteAt(0),
		asm.And.Imm(asm.R4, 0xf0),
		asm.JNE.Imm(asm.R4, 0x60, pass),
		byteAt(6),
		asm.JNE.Imm(asm.R4, protoUDP, pass),
		half(40+2),
		asm.HostTo(asm.BE, asm.R4, asm.Half).WithSymbol("port"),
		asm.JNE.Imm(asm.R4, int32(port), pass),
	)
	return p
}

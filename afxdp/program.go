// SPDX-License-Identifier: Apache-2.0

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

// loadRedirect builds and loads the built-in program: a few instructions, so they are written here
// and the package needs no clang.
func loadRedirect(cfg AttachConfig, xsks []*ebpf.Map, ifindex int) (*ebpf.Program, error) {
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
		// The hints come from functions of this driver.
		spec.Flags |= unix.BPF_F_XDP_DEV_BOUND_ONLY
		spec.Ifindex = uint32(ifindex)
	}
	spec.Instructions = chain(cfg.matches(), func(i int) asm.Instructions {
		return redirectProgram(xsks[i].FD(), cfg.matches()[i], cfg.Stamp, hints)
	})
	prog, err := ebpf.NewProgram(spec)
	switch {
	case err == nil:
		return prog, nil
	case cfg.Hints && errors.Is(err, unix.EOPNOTSUPP):
		err = &FeatureError{Feature: "receive hints", Since: newerThan("6.3"), Needs: "a driver with XDP metadata",
			Remedy: "leave AttachConfig.Hints out", Err: err}
	case cfg.MultiBuffer && errors.Is(err, unix.EINVAL):
		err = &FeatureError{Feature: "XDP programs for several buffers", Since: oldestKernel, Err: err}
	}
	return nil, explainLoad("load XDP program", err)
}

func explainLoad(what string, err error) error {
	if errors.Is(err, unix.EPERM) {
		// The library's own error recommends raising RLIMIT_MEMLOCK, which is no limit here since
		// 5.11.
		return fmt.Errorf("%w: %s needs CAP_BPF and CAP_NET_ADMIN: %w", ErrPermission, what, unix.EPERM)
	}
	return fmt.Errorf("afxdp: %s: %w", what, err)
}

// redirectProgram is, in C:
//
//	if (!matches(ctx))
//		return XDP_PASS;
//	(stamp, see Stamp, or hints, see hintsProgram)
//	return bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS);
//
// The last argument is the verdict for a queue without a socket.
func redirectProgram(xsks int, match Match, stamp *Stamp, hints asm.Instructions) asm.Instructions {
	return match.program(stamp, append(hints,
		asm.LoadMem(asm.R2, asm.R6, mdRxQueue, asm.Word),
		asm.LoadMapPtr(asm.R1, xsks),
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	))
}

// chain combines one program per match: packets that one passes continue with the next.
func chain(matches []Match, program func(i int) asm.Instructions) asm.Instructions {
	var all asm.Instructions
	for i := range matches {
		insns := program(i)
		if i < len(matches)-1 {
			verdict := len(insns) - 2 // the two that pass a packet, see Match.program
			insns = append(insns[:verdict], asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(insns[verdict].Symbol()))
		}
		label := func(name string) string { return fmt.Sprintf("%d %s", i, name) }
		for j, ins := range insns {
			if ref := ins.Reference(); ref != "" {
				ins = ins.WithReference(label(ref))
			}
			if sym := ins.Symbol(); sym != "" {
				ins = ins.WithSymbol(label(sym))
			}
			insns[j] = ins
		}
		all = append(all, insns...)
	}
	return all
}

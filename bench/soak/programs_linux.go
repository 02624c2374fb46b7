package soak

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
)

// Offsets in struct xdp_md, and verdicts (linux/bpf.h).
const (
	mdData    = 0
	mdDataEnd = 4
	mdRxQueue = 16

	xdpPass = 2
	xdpTx   = 3
)

// foreign is where ours jumps to with foreign frames.
const foreign = "foreign"

// ours goes on with packets of the soak, with the packet in R7 and the context
// in R6. It checks that a packet has all of its headers.
func ours() asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R7),
		asm.Add.Imm(asm.R4, bodyAt),
		asm.JGT.Reg(asm.R4, asm.R3, foreign),
		asm.LoadMem(asm.R4, asm.R7, 12, asm.Half),
		asm.HostTo(asm.BE, asm.R4, asm.Half),
		asm.JNE.Imm(asm.R4, etherType, foreign),
	}
}

// pass gives foreign frames to the kernel's stack.
func pass() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass).WithSymbol(foreign), asm.Return()}
}

// load loads an XDP program for packets of the soak.
func load(name string, body asm.Instructions) (*ebpf.Program, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("soak: %w", err)
	}
	insns := append(append(ours(), body...), pass()...)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "Dual BSD/GPL", Instructions: insns})
	if err != nil {
		return nil, fmt.Errorf("soak: load XDP program %s: %w", name, err)
	}
	return prog, nil
}

// loadReflector loads the program that sends packets back.
func loadReflector() (*ebpf.Program, error) {
	return load("soak_reflect", asm.Instructions{asm.Mov.Imm(asm.R0, xdpTx), asm.Return()})
}

// loadStamping loads a program that notes when a packet arrives and redirects it
// to the socket of its queue, and the map of these sockets.
func loadStamping(queues int) (*ebpf.Program, *ebpf.Map, error) {
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "soak_sockets", Type: ebpf.XSKMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(queues),
	})
	if err != nil {
		return nil, nil, fmt.Errorf("soak: make a map of sockets: %w", err)
	}
	prog, err := load("soak_stamp", asm.Instructions{
		asm.FnKtimeGetNs.Call(),
		asm.HostTo(asm.BE, asm.R0, asm.DWord),
		asm.StoreMem(asm.R7, arrivedAt, asm.R0, asm.DWord),
		asm.LoadMem(asm.R2, asm.R6, mdRxQueue, asm.Word),
		asm.LoadMapPtr(asm.R1, sockets.FD()),
		asm.Mov.Imm(asm.R3, xdpPass),
		asm.FnRedirectMap.Call(),
		asm.Return(),
	})
	if err != nil {
		return nil, nil, errors.Join(err, sockets.Close())
	}
	return prog, sockets, nil
}

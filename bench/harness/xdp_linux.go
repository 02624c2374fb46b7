// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Verdicts, and offsets in struct xdp_md (linux/bpf.h).
const (
	XDPDrop = 1
	XDPPass = 2
	XDPTx   = 3

	mdData    = 0
	mdDataEnd = 4
	MdRxQueue = 16
)

// Foreign is where a program's body jumps to with a frame that it passes to the kernel's stack.
const Foreign = "foreign"

// LoadXDP loads a program that does body with frames of an EtherType that have the least number of
// bytes, with the frame in R7 and the context in R6. All others are foreign.
func LoadXDP(name string, flags uint32, etherType, least int32, body asm.Instructions) (*ebpf.Program, error) {
	return loadXDP(name, flags, append(append(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R7),
		asm.Add.Imm(asm.R4, least),
		asm.JGT.Reg(asm.R4, asm.R3, Foreign),
		asm.LoadMem(asm.R4, asm.R7, 12, asm.Half),
		asm.HostTo(asm.BE, asm.R4, asm.Half),
		asm.JNE.Imm(asm.R4, etherType, Foreign),
	}, body...), asm.Mov.Imm(asm.R0, XDPPass).WithSymbol(Foreign), asm.Return()))
}

// LoadVerdict loads a program that has the same verdict on all frames.
func LoadVerdict(name string, flags uint32, verdict int32) (*ebpf.Program, error) {
	return loadXDP(name, flags, asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()})
}

func loadXDP(name string, flags uint32, insns asm.Instructions) (*ebpf.Program, error) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, Flags: flags, License: "Dual BSD/GPL",
		Instructions: insns})
	if err != nil {
		return nil, fmt.Errorf("load XDP program %s: %w", name, err)
	}
	return prog, nil
}

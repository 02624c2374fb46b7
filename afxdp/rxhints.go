// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// RxHints are the device's hints for a received packet.
type RxHints struct {
	Timestamp uint64 // time of reception in nanoseconds of the device's clock, 0 if unknown
	Hash      uint32 // receive-side scaling hash
	HashType  uint32 // what the hash covers (enum xdp_rss_hash_type), 0 if there is no hash
	VLANProto uint16 // EtherType of the VLAN tag that the device removed, 0 if none
	VLANTCI   uint16 // priority and VLAN number of that tag
}

// Layout of the hints before a packet, as written by the built-in program.
const (
	hintTimestamp = 0
	hintHash      = 8
	hintHashType  = 12
	hintVLANProto = 16 // in network byte order
	hintVLANTCI   = 18
	hintMagic     = 20
	hintSize      = 24

	hintMagicValue = 0x41584831
)

// RxHints returns the hints that the program of AttachConfig.Hints wrote before the packet that
// Receive returned as d, and erases them, so that a second call returns false. It returns false
// without hints.
func (u *UMEM) RxHints(d Desc) (RxHints, bool) {
	if int(d.Off) < hintSize {
		return RxHints{}, false
	}
	m := u.RxMeta(d, hintSize)
	if binary.NativeEndian.Uint32(m[hintMagic:]) != hintMagicValue {
		return RxHints{}, false
	}
	h := RxHints{
		Timestamp: binary.NativeEndian.Uint64(m[hintTimestamp:]),
		Hash:      binary.NativeEndian.Uint32(m[hintHash:]),
		HashType:  binary.NativeEndian.Uint32(m[hintHashType:]),
		VLANProto: binary.BigEndian.Uint16(m[hintVLANProto:]),
		VLANTCI:   binary.NativeEndian.Uint16(m[hintVLANTCI:]),
	}
	clear(m)
	return h, true
}

// RxMeta returns the n bytes before the packet that d describes: those that the caller's XDP
// program wrote after bpf_xdp_adjust_meta. n is at most d.Off.
func (u *UMEM) RxMeta(d Desc, n int) []byte {
	end := int(d.Frame)<<u.shift + int(d.Off)
	return u.mem[end-n : end : end]
}

// kernelFunctions returns a function that finds the kernel's functions by name. Its error is
// btf.ErrNotFound for a function that the kernel does not have.
func kernelFunctions() (find func(name string) (btf.TypeID, error), err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("afxdp: hints need the kernel's type information (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	return func(name string) (btf.TypeID, error) {
		var fn *btf.Func
		if err := kernel.TypeByName(name, &fn); err != nil {
			return 0, err
		}
		return kernel.TypeID(fn)
	}, nil
}

// hintsProgram collects the hints on the stack and copies them before the packet. It expects the
// context in R6. Hints that the driver does not have stay zero. A packet without room for metadata
// continues without hints.
//
// See https://docs.kernel.org/networking/xdp-rx-metadata.html.
func hintsProgram(find func(name string) (btf.TypeID, error)) (asm.Instructions, error) {
	insns := asm.Instructions{asm.Mov.Imm(asm.R1, 0)}
	for off := int16(0); off < hintSize; off += 8 {
		insns = append(insns, asm.StoreMem(asm.RFP, off-hintSize, asm.R1, asm.DWord))
	}
	for _, k := range []struct {
		name     string
		outs     []int32 // destinations of its results
		required bool
	}{
		{"bpf_xdp_metadata_rx_timestamp", []int32{hintTimestamp}, true},
		{"bpf_xdp_metadata_rx_hash", []int32{hintHash, hintHashType}, true},
		{"bpf_xdp_metadata_rx_vlan_tag", []int32{hintVLANProto, hintVLANTCI}, false}, // since 6.8
	} {
		id, err := find(k.name)
		switch {
		case errors.Is(err, btf.ErrNotFound) && k.required:
			return nil, &FeatureError{Feature: "receive hints (" + k.name + ")", Since: "6.3", Err: err}
		case errors.Is(err, btf.ErrNotFound):
			continue
		case err != nil:
			return nil, fmt.Errorf("afxdp: find %s: %w", k.name, err)
		}
		insns = append(insns, asm.Mov.Reg(asm.R1, asm.R6))
		for i, out := range k.outs {
			arg := asm.R2 + asm.Register(i)
			insns = append(insns, asm.Mov.Reg(arg, asm.RFP), asm.Add.Imm(arg, out-hintSize))
		}
		insns = append(insns, asm.Instruction{
			OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: int64(id),
		})
	}
	const redirect = "redirect"
	insns = append(insns,
		asm.Mov.Imm(asm.R1, hintMagicValue),
		asm.StoreMem(asm.RFP, hintMagic-hintSize, asm.R1, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, -hintSize),
		asm.FnXdpAdjustMeta.Call(),
		asm.JNE.Imm(asm.R0, 0, redirect),
		asm.LoadMem(asm.R2, asm.R6, mdDataMeta, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdData, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, hintSize),
		asm.JGT.Reg(asm.R4, asm.R3, redirect),
	)
	for off := int16(0); off < hintSize; off += 8 {
		insns = append(insns,
			asm.LoadMem(asm.R1, asm.RFP, off-hintSize, asm.DWord),
			asm.StoreMem(asm.R2, off, asm.R1, asm.DWord))
	}
	return append(insns, asm.Mov.Imm(asm.R0, 0).WithSymbol(redirect)), nil
}

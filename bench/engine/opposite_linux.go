// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/wire"
)

// opposite is the other end of the cable in every test: what meets the frames that the tested
// program sends, and what makes the frames that it is to receive. It is the same for all
// baselines, so that their figures differ by what they do.
type opposite struct {
	arrived *ebpf.Map // the number of frames of the test from the tested end, each CPU on its own

	countAndDrop *ebpf.Program // the frames of the test
	reflect      *ebpf.Program // the frames of the test, counted too
	generate     *ebpf.Program // run on frames that the kernel makes, puts each of them on the cable
	// pass is attached to the tested end where a baseline has no XDP program: veth wakes the
	// receiving end for frames sent by XDP_TX only if there is some program.
	pass *ebpf.Program
}

// Offsets in a frame of the test.
const (
	protocolAt  = 23
	addressesAt = 26
	portAt      = 36
)

// loadPrograms loads the programs for a cable.
func (o *opposite) loadPrograms(tested, opposed wire.Endpoint) (err error) {
	o.arrived, err = ebpf.NewMap(&ebpf.MapSpec{Name: "arrived", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8,
		MaxEntries: 1})
	if err != nil {
		return fmt.Errorf("engine: make the opposite end's counter: %w", err)
	}
	then := func(verdict int32, before asm.Instructions) asm.Instructions {
		return append(append(count(o.arrived), before...), asm.Mov.Imm(asm.R0, verdict), asm.Return())
	}
	const frags, headers = unix.BPF_F_XDP_HAS_FRAGS, wire.EnvelopeLen
	var errs [4]error
	o.countAndDrop, errs[0] = harness.LoadXDP("count_and_drop", frags, unix.ETH_P_IP, headers, then(harness.XDPDrop, nil))
	o.reflect, errs[1] = harness.LoadXDP("reflect", frags, unix.ETH_P_IP, headers,
		then(harness.XDPTx, turnBack(tested, opposed)))
	o.generate, errs[2] = harness.LoadVerdict("generate", 0, harness.XDPTx)
	o.pass, errs[3] = harness.LoadVerdict("pass", frags, harness.XDPPass)
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("engine: the opposite end: %w", err)
	}
	return nil
}

// count counts frames of the test; all others are foreign.
func count(arrived *ebpf.Map) asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R4, asm.R7, protocolAt, asm.Byte),
		asm.JNE.Imm(asm.R4, unix.IPPROTO_UDP, harness.Foreign),
		asm.LoadMem(asm.R4, asm.R7, portAt, asm.Half),
		asm.HostTo(asm.BE, asm.R4, asm.Half),
		asm.JNE.Imm(asm.R4, testPort, harness.Foreign),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, arrived.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, harness.Foreign),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
	}
}

// turnBack addresses a frame to the tested end. The addresses are written, not swapped: what comes
// back to the tested end is then the same frame whether the program there turned the IP addresses
// round (a UDP socket), the MAC addresses only (a program that bounces frames), or nothing. Source
// and destination change places at most, so the checksums stay right.
func turnBack(tested, opposed wire.Endpoint) (insns asm.Instructions) {
	write := func(at int16, bytes []byte) {
		for word := range slices.Chunk(bytes, 4) {
			insns = append(insns, asm.StoreImm(asm.R7, at, int64(int32(binary.NativeEndian.Uint32(word))), asm.Word))
			at += 4
		}
	}
	write(0, slices.Concat(tested.MAC[:], opposed.MAC[:]))
	write(addressesAt, slices.Concat(opposed.IP.AsSlice(), tested.IP.AsSlice()))
	return insns
}

func (o *opposite) closePrograms() error {
	return errors.Join(o.arrived.Close(), o.countAndDrop.Close(), o.reflect.Close(), o.generate.Close(), o.pass.Close())
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cilium/ebpf/asm"
)

// Stamp selects UDP packets by a number in their payload: four bytes in network byte order at
// Offset. A packet is selected if the highest Bits bits of that number times 0x9E3779B1, modulo
// 2^32, are 0. So one of 2^Bits consecutive numbers is, and both ends of a flow select the same
// ones.
type Stamp struct {
	Offset int // bytes, up to 1024
	Bits   int // 0 selects all packets that have the number, 31 is the most
}

// Layout of a stamp before a packet, as written by the built-in program. The magic number is as
// long as the time, so that no other program's metadata is taken for one.
const (
	stampTime  = 0
	stampMagic = 8
	stampSize  = 16

	stampMagicValue = 0x41585354414d5031

	maxStampOffset = 1024
	maxStampBits   = 31

	// golden is 2^32 divided by the golden ratio: its multiples are spread evenly, modulo 2^32.
	golden = 0x9E3779B1
)

func (s *Stamp) check() error {
	switch {
	case s.Offset < 0 || s.Offset > maxStampOffset:
		return fmt.Errorf("%w: AttachConfig.Stamp.Offset is %d, not from 0 to %d", ErrConfig, s.Offset, maxStampOffset)
	case s.Bits < 0 || s.Bits > maxStampBits:
		return fmt.Errorf("%w: AttachConfig.Stamp.Bits is %d, not from 0 to %d", ErrConfig, s.Bits, maxStampBits)
	}
	return nil
}

// RxStamp returns when the packet that Receive returned as d arrived, on the kernel's
// CLOCK_MONOTONIC, and erases the stamp, so that a second call returns false. It returns false for
// a packet that the program of AttachConfig.Stamp did not stamp.
func (u *UMEM) RxStamp(d Desc) (time.Duration, bool) {
	if int(d.Off) < stampSize {
		return 0, false
	}
	m := u.RxMeta(d, stampSize)
	if binary.NativeEndian.Uint64(m[stampMagic:]) != stampMagicValue {
		return 0, false
	}
	at := time.Duration(binary.NativeEndian.Uint64(m[stampTime:]))
	clear(m)
	return at, true
}

// stamped is the label of the instructions that stamp a packet.
const stamped = "stamp"

// drawStamp continues with the stamp for packets that it selects, and takes the others. R2 points
// to the IP header of a UDP packet, which has the length that its kind says.
func (p *matchProgram) drawStamp(s *Stamp, k packetKind) {
	const udp, number = 8, 4
	off := udp + s.Offset + map[uint16]int{etherIPv4: 20, etherIPv6: 40}[k.ip]
	p.needBytes(int32(off+number), take)
	if s.Bits > 0 {
		factor := uint32(golden)
		p.loadField(int16(off), asm.Word)
		p.addInstructions(asm.Mul.Imm32(asm.R4, int32(factor)), asm.RSh.Imm32(asm.R4, int32(32-s.Bits)),
			asm.JNE.Imm(asm.R4, 0, p.useLabel(take)))
	}
	p.addInstructions(p.jumpTo(stamped))
}

// writeStamp puts the time before the packet. A packet without room for it continues without a
// stamp.
func (p *matchProgram) writeStamp() {
	p.labelNext(stamped)
	p.addInstructions(
		asm.FnKtimeGetNs.Call(),
		asm.Mov.Reg(asm.R9, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, -stampSize),
		asm.FnXdpAdjustMeta.Call(),
		asm.JNE.Imm(asm.R0, 0, p.useLabel(take)),
		asm.LoadMem(asm.R2, asm.R6, mdDataMeta, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdData, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, stampSize),
		asm.JGT.Reg(asm.R4, asm.R3, p.useLabel(take)),
		asm.StoreMem(asm.R2, stampTime, asm.R9, asm.DWord),
		asm.LoadImm(asm.R4, stampMagicValue, asm.DWord),
		asm.StoreMem(asm.R2, stampMagic, asm.R4, asm.DWord),
	)
}

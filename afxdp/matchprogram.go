// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"
)

// A matchProgram generates the instructions of a Match. They read the headers once, which
// determines the packet's kind. For each kind follows the Match without the conditions that the
// kind decides: a Match of UDP ports leaves no condition for an ARP packet.
//
// R6 holds the context, R7 the EtherType, R8 the VLAN's number if a condition needs it. R2 points
// after the Ethernet header, R3 to the packet's end. R4 and R5 hold fields.
type matchProgram struct {
	match  Match
	stamp  *Stamp // of UDP packets that match; may be nil
	insns  asm.Instructions
	kinds  []packetKind // whose conditions are not written yet
	labels int
	here   string            // label of the next instruction
	same   map[string]string // other labels of an instruction, and its first one
	jumped map[string]bool   // labels to which there are jumps
}

// packetKind is the known part of a packet's headers.
type packetKind struct {
	ip       uint16 // etherIPv4, etherIPv6, or 0 for a packet that is neither
	protocol uint8  // protoUDP or protoTCP, for a packet that has ports
}

const (
	take = "take" // label of the instructions that redirect the packet
	pass = "pass" // of those that pass it
)

// stampsKind reports whether packets of a kind may be stamped.
func (p *matchProgram) stampsKind(k packetKind) bool { return p.stamp != nil && k.protocol == protoUDP }

func (k packetKind) labelName() string { return fmt.Sprintf("kind %#x %d", k.ip, k.protocol) }

// program returns instructions that reach those of redirect, which end the program, for packets
// that match, and pass the others. The verifier refuses unreachable instructions, so redirect is
// omitted if nothing reaches it. Packets that stamp selects, which may be nil, are stamped before.
func (m Match) program(stamp *Stamp, redirect asm.Instructions) asm.Instructions {
	p := &matchProgram{match: m, stamp: stamp, same: make(map[string]string), jumped: make(map[string]bool)}
	p.addInstructions(asm.Mov.Reg(asm.R6, asm.R1))
	if m.op == matchAll && stamp == nil {
		p.addInstructions(redirect...)
		return p.insns
	}
	p.findKind()
	falls := len(p.kinds) > 0 // the last kind continues with redirect
	for i, k := range p.kinds {
		p.labelNext(k.labelName())
		p.branchOn(m, k, false, pass)
		switch {
		case p.stampsKind(k):
			p.drawStamp(stamp, k)
		case i < len(p.kinds)-1 || p.jumped[stamped]:
			p.addInstructions(p.jumpTo(take))
		}
	}
	if p.jumped[stamped] {
		p.writeStamp()
	}
	if falls || p.jumped[take] {
		p.labelNext(take)
		p.addInstructions(redirect...)
	}
	p.labelNext(pass)
	p.addInstructions(asm.Mov.Imm(asm.R0, xdpPass), asm.Return())
	for i, ins := range p.insns {
		if name, ok := p.same[ins.Reference()]; ok {
			p.insns[i] = ins.WithReference(name)
		}
	}
	return p.insns
}

func (p *matchProgram) addInstructions(more ...asm.Instruction) {
	for _, ins := range more {
		if p.here != "" {
			ins, p.here = ins.WithSymbol(p.here), ""
		}
		p.insns = append(p.insns, ins)
	}
}

// labelNext names the next instruction.
func (p *matchProgram) labelNext(name string) {
	if p.here != "" {
		p.same[name] = p.here
		return
	}
	p.here = name
}

func (p *matchProgram) newLabel() string {
	p.labels++
	return fmt.Sprintf("after %d", p.labels)
}

func (p *matchProgram) jumpTo(to string) asm.Instruction { return asm.Ja.Label(p.useLabel(to)) }

// useLabel records a jump to a label.
func (p *matchProgram) useLabel(label string) string {
	p.jumped[label] = true
	return label
}

// loadField loads a field of the header at R2 in the host's byte order.
func (p *matchProgram) loadField(off int16, size asm.Size) {
	p.addInstructions(asm.LoadMem(asm.R4, asm.R2, off, size))
	if size != asm.Byte {
		p.addInstructions(asm.HostTo(asm.BE, asm.R4, size))
	}
}

// needBytes jumps to a label unless n bytes from R2 on are in the packet.
func (p *matchProgram) needBytes(n int32, otherwise string) {
	p.addInstructions(asm.Mov.Reg(asm.R5, asm.R2), asm.Add.Imm(asm.R5, n),
		asm.JGT.Reg(asm.R5, asm.R3, p.useLabel(otherwise)))
}

// conditionsOf returns the label where packets of a kind continue: their conditions, or the result
// if there are none.
func (p *matchProgram) conditionsOf(k packetKind) string {
	holds, known := p.match.fold(k)
	switch {
	case known && holds && !p.stampsKind(k):
		return take
	case known && !holds:
		return pass
	}
	for _, have := range p.kinds {
		if have == k {
			return k.labelName()
		}
	}
	p.kinds = append(p.kinds, k)
	return k.labelName()
}

// findKind is the counterpart of the function look.
func (p *matchProgram) findKind() {
	other := p.conditionsOf(packetKind{})
	p.addInstructions(
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
	)
	p.needBytes(14, pass) // no such packet arrives, but the verifier requires the check
	vlan := p.match.asksFor(matchVLAN)
	if vlan {
		p.addInstructions(asm.Mov.Imm(asm.R8, 0))
	}
	p.loadField(12, asm.Half)
	p.addInstructions(asm.Mov.Reg(asm.R7, asm.R4), asm.JNE.Imm(asm.R7, etherVLAN, p.useLabel("untagged")))
	p.needBytes(18, "untagged")
	if vlan {
		p.loadField(14, asm.Half)
		p.addInstructions(asm.And.Imm(asm.R4, vlanField), asm.Mov.Reg(asm.R8, asm.R4))
	}
	p.loadField(16, asm.Half)
	p.addInstructions(asm.Mov.Reg(asm.R7, asm.R4), asm.Add.Imm(asm.R2, 4))
	p.labelNext("untagged")
	p.addInstructions(
		asm.Add.Imm(asm.R2, 14),
		asm.JEq.Imm(asm.R7, etherIPv6, p.useLabel("ipv6")),
		asm.JNE.Imm(asm.R7, etherIPv4, p.useLabel(other)),
	)
	p.needBytes(20, other)
	p.loadField(0, asm.Byte)
	p.addInstructions(asm.JLT.Imm(asm.R4, plainIPv4, p.useLabel(other)),
		asm.JGT.Imm(asm.R4, plainIPv4|15, p.useLabel(other)))
	plain := p.conditionsOf(packetKind{ip: etherIPv4})
	if p.asksForPorts() {
		p.addInstructions(asm.JNE.Imm(asm.R4, plainIPv4, p.useLabel(plain)))
		p.loadField(6, asm.Half)
		p.addInstructions(asm.And.Imm(asm.R4, fragmentField), asm.JNE.Imm(asm.R4, 0, p.useLabel(plain)))
		p.findPorts(etherIPv4, 20, 9, plain)
	}
	p.addInstructions(p.jumpTo(plain))
	p.labelNext("ipv6")
	p.needBytes(40, other)
	p.loadField(0, asm.Byte)
	p.addInstructions(asm.And.Imm(asm.R4, 0xf0), asm.JNE.Imm(asm.R4, 0x60, p.useLabel(other)))
	plain = p.conditionsOf(packetKind{ip: etherIPv6})
	if p.asksForPorts() {
		p.findPorts(etherIPv6, 40, 6, plain)
	}
	p.addInstructions(p.jumpTo(plain))
}

// findPorts separates UDP and TCP packets from others after an IP header.
func (p *matchProgram) findPorts(ip uint16, header int32, protocol int16, plain string) {
	p.needBytes(header+portsRoom, plain)
	p.loadField(protocol, asm.Byte)
	for _, protocol := range []uint8{protoUDP, protoTCP} {
		if to := p.conditionsOf(packetKind{ip, protocol}); to != plain {
			p.addInstructions(asm.JEq.Imm(asm.R4, int32(protocol), p.useLabel(to)))
		}
	}
}

// asksForPorts reports whether the program depends on the presence of ports.
func (p *matchProgram) asksForPorts() bool {
	return p.stamp != nil || p.match.asksFor(matchPort) || p.match.asksFor(matchSourcePort)
}

// asksFor reports whether there is a condition of a kind.
func (m Match) asksFor(op matchOp) bool {
	return m.op == op || slices.ContainsFunc(m.args, func(a Match) bool { return a.asksFor(op) })
}

// fold reports whether m holds for every packet of a kind, or for none.
func (m Match) fold(k packetKind) (holds, known bool) {
	in := func(v uint16) (bool, bool) { return m.first <= v && v <= m.last, true }
	ip := k.ip != 0
	switch m.op {
	case matchAll:
		return true, true
	case matchNot:
		holds, known = m.args[0].fold(k)
		return !holds, known
	case matchAnd, matchOr:
		decides := m.op == matchOr
		all := true
		for _, a := range m.args {
			h, known := a.fold(k)
			if known && h == decides {
				return decides, true
			}
			all = all && known
		}
		return !decides, all
	case matchEtherType:
		if ip {
			return in(k.ip)
		}
	case matchProtocol:
		if k.protocol != 0 {
			return in(uint16(k.protocol))
		}
		return false, !ip
	case matchPort, matchSourcePort:
		return false, k.protocol == 0
	case matchSource, matchDestination:
		family := uint16(etherIPv6)
		if m.prefix.Addr().Is4() {
			family = etherIPv4
		}
		same := k.ip == family
		return same && m.prefix.Bits() == 0, !same || m.prefix.Bits() == 0
	}
	return false, false
}

// branchOn jumps to a label if m's result for a packet of a kind is want.
func (p *matchProgram) branchOn(m Match, k packetKind, want bool, label string) {
	if holds, known := m.fold(k); known {
		if holds == want {
			p.addInstructions(p.jumpTo(label))
		}
		return
	}
	switch m.op {
	case matchNot:
		p.branchOn(m.args[0], k, !want, label)
	case matchAnd, matchOr:
		p.branchOf(m, k, want, label)
	case matchEtherType:
		p.compareRange(asm.R7, m, want, label)
	case matchVLAN:
		p.compareRange(asm.R8, m, want, label)
	case matchProtocol:
		p.loadField(map[uint16]int16{etherIPv4: 9, etherIPv6: 6}[k.ip], asm.Byte)
		p.compareRange(asm.R4, m, want, label)
	case matchPort, matchSourcePort:
		off := map[uint16]int16{etherIPv4: 20, etherIPv6: 40}[k.ip]
		if m.op == matchPort {
			off += 2
		}
		p.loadField(off, asm.Half)
		p.compareRange(asm.R4, m, want, label)
	case matchSource, matchDestination:
		p.comparePrefix(m, want, label)
	}
}

// branchOf writes a list of conditions without those that the kind decides: one of these that
// decides the list would have decided it in branchOn.
func (p *matchProgram) branchOf(m Match, k packetKind, want bool, label string) {
	var open []Match
	for _, a := range m.args {
		if _, known := a.fold(k); !known {
			open = append(open, a)
		}
	}
	decides := m.op == matchOr // the result of one condition that decides the list
	if want == decides {
		for _, a := range open {
			p.branchOn(a, k, want, label)
		}
		return
	}
	after := p.newLabel()
	last := len(open) - 1
	for _, a := range open[:last] {
		p.branchOn(a, k, decides, after)
	}
	p.branchOn(open[last], k, want, label)
	p.labelNext(after)
}

// compareRange jumps to a label if want equals whether the register is from first to last.
func (p *matchProgram) compareRange(r asm.Register, m Match, want bool, label string) {
	first, last := int32(m.first), int32(m.last)
	switch {
	case first == last && want:
		p.addInstructions(asm.JEq.Imm(r, first, p.useLabel(label)))
	case first == last:
		p.addInstructions(asm.JNE.Imm(r, first, p.useLabel(label)))
	case want:
		after := p.newLabel()
		p.addInstructions(asm.JLT.Imm(r, first, p.useLabel(after)), asm.JLE.Imm(r, last, p.useLabel(label)))
		p.labelNext(after)
	default:
		p.addInstructions(asm.JLT.Imm(r, first, p.useLabel(label)), asm.JGT.Imm(r, last, p.useLabel(label)))
	}
}

// comparePrefix compares an address, word by word, up to the length of the prefix.
func (p *matchProgram) comparePrefix(m Match, want bool, label string) {
	off := map[bool]int16{true: 12, false: 8}[m.prefix.Addr().Is4()]
	address := m.prefix.Addr().AsSlice()
	if m.op == matchDestination {
		off += int16(len(address))
	}
	unlike := label
	if want {
		unlike = p.newLabel()
	}
	for left := m.prefix.Bits(); left > 0; left -= 32 {
		p.loadField(off, asm.Word)
		value := binary.BigEndian.Uint32(address)
		if left < 32 {
			p.addInstructions(asm.RSh.Imm(asm.R4, int32(32-left)))
			value >>= 32 - left
		}
		if want && left <= 32 {
			p.addInstructions(asm.JEq.Imm32(asm.R4, int32(value), p.useLabel(label)))
		} else {
			p.addInstructions(asm.JNE.Imm32(asm.R4, int32(value), p.useLabel(unlike)))
		}
		off, address = off+4, address[4:]
	}
	if want {
		p.labelNext(unlike)
	}
}

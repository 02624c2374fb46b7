// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf/asm"
)

// A matchProgram generates the instructions of a Match. They read the headers once, which
// determines the packet's kind. For each kind follows the Match without the conditions that the
// kind decides: a Match of UDP ports leaves no condition for an ARP packet.
//
// R6 holds the context, R7 the EtherType. R2 points after the Ethernet header, R3 to the packet's
// end. R4 and R5 hold fields.
type matchProgram struct {
	match  Match
	insns  asm.Instructions
	kinds  []packetKind // whose conditions are not written yet
	labels int
	here   string            // label of the next instruction
	same   map[string]string // other labels of an instruction, and its first one
	jumped map[string]bool   // to these labels
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

func (k packetKind) label() string { return fmt.Sprintf("kind %#x %d", k.ip, k.protocol) }

// program returns instructions that reach those of redirect, which end the program, for packets
// that match, and pass the others. The verifier refuses unreachable instructions, so redirect is
// omitted if nothing reaches it.
func (m Match) program(redirect asm.Instructions) asm.Instructions {
	p := &matchProgram{match: m, same: make(map[string]string), jumped: make(map[string]bool)}
	p.add(asm.Mov.Reg(asm.R6, asm.R1))
	if m.op == matchAll {
		p.add(redirect...)
		return p.insns
	}
	p.findKind()
	falls := len(p.kinds) > 0 // the last kind continues with redirect
	for i, k := range p.kinds {
		p.label(k.label())
		p.branch(m, k, false, pass)
		if i < len(p.kinds)-1 {
			p.add(p.jump(take))
		}
	}
	if falls || p.jumped[take] {
		p.label(take)
		p.add(redirect...)
	}
	p.label(pass)
	p.add(asm.Mov.Imm(asm.R0, xdpPass), asm.Return())
	for i, ins := range p.insns {
		if name, ok := p.same[ins.Reference()]; ok {
			p.insns[i] = ins.WithReference(name)
		}
	}
	return p.insns
}

func (p *matchProgram) add(more ...asm.Instruction) {
	for _, ins := range more {
		if p.here != "" {
			ins, p.here = ins.WithSymbol(p.here), ""
		}
		p.insns = append(p.insns, ins)
	}
}

// label names the next instruction.
func (p *matchProgram) label(name string) {
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

func (p *matchProgram) jump(to string) asm.Instruction { return asm.Ja.Label(p.to(to)) }

// to records a jump to a label.
func (p *matchProgram) to(label string) string {
	p.jumped[label] = true
	return label
}

// load loads a field of the header at R2 in the host's byte order.
func (p *matchProgram) load(off int16, size asm.Size) {
	p.add(asm.LoadMem(asm.R4, asm.R2, off, size))
	if size != asm.Byte {
		p.add(asm.HostTo(asm.BE, asm.R4, size))
	}
}

// need jumps to a label unless n bytes from R2 on are in the packet.
func (p *matchProgram) need(n int32, otherwise string) {
	p.add(asm.Mov.Reg(asm.R5, asm.R2), asm.Add.Imm(asm.R5, n), asm.JGT.Reg(asm.R5, asm.R3, p.to(otherwise)))
}

// end returns the label where packets of a kind continue: their conditions, or the result if there
// are none.
func (p *matchProgram) end(k packetKind) string {
	holds, known := p.match.fold(k)
	switch {
	case known && holds:
		return take
	case known:
		return pass
	}
	for _, have := range p.kinds {
		if have == k {
			return k.label()
		}
	}
	p.kinds = append(p.kinds, k)
	return k.label()
}

// findKind is the counterpart of the function look.
func (p *matchProgram) findKind() {
	other := p.end(packetKind{})
	p.add(
		asm.LoadMem(asm.R2, asm.R6, mdData, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, mdDataEnd, asm.Word),
	)
	p.need(14, pass) // no such packet arrives, but the verifier requires the check
	p.load(12, asm.Half)
	p.add(asm.Mov.Reg(asm.R7, asm.R4), asm.JNE.Imm(asm.R7, etherVLAN, p.to("untagged")))
	p.need(18, "untagged")
	p.load(16, asm.Half)
	p.add(asm.Mov.Reg(asm.R7, asm.R4), asm.Add.Imm(asm.R2, 4))
	p.label("untagged")
	p.add(
		asm.Add.Imm(asm.R2, 14),
		asm.JEq.Imm(asm.R7, etherIPv6, p.to("ipv6")),
		asm.JNE.Imm(asm.R7, etherIPv4, p.to(other)),
	)
	p.need(20, other)
	p.load(0, asm.Byte)
	p.add(asm.JLT.Imm(asm.R4, plainIPv4, p.to(other)), asm.JGT.Imm(asm.R4, plainIPv4|15, p.to(other)))
	plain := p.end(packetKind{ip: etherIPv4})
	if p.match.asksForPorts() {
		p.add(asm.JNE.Imm(asm.R4, plainIPv4, p.to(plain)))
		p.load(6, asm.Half)
		p.add(asm.And.Imm(asm.R4, fragmentField), asm.JNE.Imm(asm.R4, 0, p.to(plain)))
		p.findPorts(etherIPv4, 20, 9, plain)
	}
	p.add(p.jump(plain))
	p.label("ipv6")
	p.need(40, other)
	p.load(0, asm.Byte)
	p.add(asm.And.Imm(asm.R4, 0xf0), asm.JNE.Imm(asm.R4, 0x60, p.to(other)))
	plain = p.end(packetKind{ip: etherIPv6})
	if p.match.asksForPorts() {
		p.findPorts(etherIPv6, 40, 6, plain)
	}
	p.add(p.jump(plain))
}

// findPorts separates UDP and TCP packets from others after an IP header.
func (p *matchProgram) findPorts(ip uint16, header int32, protocol int16, plain string) {
	p.need(header+portsRoom, plain)
	p.load(protocol, asm.Byte)
	for _, protocol := range []uint8{protoUDP, protoTCP} {
		if to := p.end(packetKind{ip, protocol}); to != plain {
			p.add(asm.JEq.Imm(asm.R4, int32(protocol), p.to(to)))
		}
	}
}

// asksForPorts reports whether the result depends on the presence of ports.
func (m Match) asksForPorts() bool {
	if m.op == matchPort || m.op == matchSourcePort {
		return true
	}
	for _, a := range m.args {
		if a.asksForPorts() {
			return true
		}
	}
	return false
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

// branch jumps to a label if m's result for a packet of a kind is want.
func (p *matchProgram) branch(m Match, k packetKind, want bool, label string) {
	if holds, known := m.fold(k); known {
		if holds == want {
			p.add(p.jump(label))
		}
		return
	}
	switch m.op {
	case matchNot:
		p.branch(m.args[0], k, !want, label)
	case matchAnd, matchOr:
		p.branchOf(m, k, want, label)
	case matchEtherType:
		p.compare(asm.R7, m, want, label)
	case matchProtocol:
		p.load(map[uint16]int16{etherIPv4: 9, etherIPv6: 6}[k.ip], asm.Byte)
		p.compare(asm.R4, m, want, label)
	case matchPort, matchSourcePort:
		off := map[uint16]int16{etherIPv4: 20, etherIPv6: 40}[k.ip]
		if m.op == matchPort {
			off += 2
		}
		p.load(off, asm.Half)
		p.compare(asm.R4, m, want, label)
	case matchSource, matchDestination:
		p.comparePrefix(m, want, label)
	}
}

// branchOf writes a list of conditions without those that the kind decides: one of these that
// decides the list would have decided it in branch.
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
			p.branch(a, k, want, label)
		}
		return
	}
	after := p.newLabel()
	last := len(open) - 1
	for _, a := range open[:last] {
		p.branch(a, k, decides, after)
	}
	p.branch(open[last], k, want, label)
	p.label(after)
}

// compare jumps to a label if want equals whether the register is from first to last.
func (p *matchProgram) compare(r asm.Register, m Match, want bool, label string) {
	first, last := int32(m.first), int32(m.last)
	switch {
	case first == last && want:
		p.add(asm.JEq.Imm(r, first, p.to(label)))
	case first == last:
		p.add(asm.JNE.Imm(r, first, p.to(label)))
	case want:
		after := p.newLabel()
		p.add(asm.JLT.Imm(r, first, p.to(after)), asm.JLE.Imm(r, last, p.to(label)))
		p.label(after)
	default:
		p.add(asm.JLT.Imm(r, first, p.to(label)), asm.JGT.Imm(r, last, p.to(label)))
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
		p.load(off, asm.Word)
		value := binary.BigEndian.Uint32(address)
		if left < 32 {
			p.add(asm.RSh.Imm(asm.R4, int32(32-left)))
			value >>= 32 - left
		}
		if want && left <= 32 {
			p.add(asm.JEq.Imm32(asm.R4, int32(value), p.to(label)))
		} else {
			p.add(asm.JNE.Imm32(asm.R4, int32(value), p.to(unlike)))
		}
		off, address = off+4, address[4:]
	}
	if want {
		p.label(unlike)
	}
}

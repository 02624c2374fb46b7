// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// A Match selects the packets that an XDP program takes from the kernel's stack; all others pass to
// it. [Attach] makes a program from it, and Match.Packet returns the program's decision for a
// packet.
//
// Conditions apply to the VLAN of a tag (802.1Q); to the EtherType, after one tag if there is one;
// to the protocol and the addresses of IPv4 packets and of IPv6 packets, whose protocol is the next
// header's, since extension headers are not followed; and to the ports of UDP and TCP packets.
// Fragments and packets with IPv4 options have no ports: a fragment may not contain them, and
// options are for the kernel.
//
// A tag that the device removes, or that a veth's peer leaves beside the packet, is not seen, so
// the packet counts as untagged: "ethtool -K eth0 rxvlan off", and "txvlan off" at a veth's peer,
// leave tags where programs look.
//
// The zero Match is invalid, so that no program takes packets by accident. A Match may be copied,
// and used by any goroutine.
type Match struct {
	op   matchOp
	args []Match // of and, or, not
	// For the other operations: the matching values, both ends included, or the prefix.
	first, last uint16
	prefix      netip.Prefix
	err         error // why it is invalid, nil for the zero value
}

type matchOp uint8

const (
	matchInvalid matchOp = iota
	matchAll
	matchAnd
	matchOr
	matchNot
	matchEtherType
	matchProtocol
	matchSourcePort
	matchPort
	matchSource
	matchDestination
	matchVLAN
)

// maxConditions bounds the program, whose jumps reach 2^15 instructions.
const maxConditions = 256

// MatchAll matches every packet: even ARP, without which other machines cannot reach this one, and
// SSH.
func MatchAll() Match { return Match{op: matchAll} }

// MatchUDP matches UDP packets over IPv4 and IPv6 to one of the ports, including those that the
// kernel would forward: [MatchDestination] excludes these.
func MatchUDP(ports ...uint16) Match {
	return MatchProtocol(protoUDP).And(matchValues(matchPort, "UDP", ports))
}

// MatchTCP matches TCP packets over IPv4 and IPv6 to one of the ports.
func MatchTCP(ports ...uint16) Match {
	return MatchProtocol(protoTCP).And(matchValues(matchPort, "TCP", ports))
}

// MatchUntagged matches packets that belong to no VLAN: those without a tag, and those whose tag
// has only a priority (VLAN number 0), which the kernel also delivers as packets of the interface
// itself. Packets of VLANs, those of 802.1ad among them, are then left to the kernel's VLAN
// interfaces.
func MatchUntagged() Match {
	return Match{op: matchVLAN}.And(MatchEtherType(etherVLAN, etherServiceVLAN).Not())
}

// MatchVLAN matches packets whose 802.1Q tag has one of the numbers, from 1 to 4094.
func MatchVLAN(numbers ...uint16) Match {
	for _, n := range numbers {
		if n == 0 || n > lastVLAN {
			return Match{err: fmt.Errorf("%w: MatchVLAN(%d): VLANs have numbers from 1 to %d; MatchUntagged is for packets of none",
				ErrConfig, n, lastVLAN)}
		}
	}
	return matchValues(matchVLAN, "VLAN", numbers)
}

// MatchEtherType matches packets of one of the types, such as 0x0806 for ARP.
func MatchEtherType(types ...uint16) Match { return matchValues(matchEtherType, "EtherType", types) }

// MatchProtocol matches IPv4 and IPv6 packets of one of the protocols, such as 1
// for ICMP, fragments included.
func MatchProtocol(protocols ...uint8) Match {
	values := make([]uint16, len(protocols))
	for i, p := range protocols {
		values[i] = uint16(p)
	}
	return matchValues(matchProtocol, "Protocol", values)
}

// MatchPort matches UDP and TCP packets to one of the ports.
func MatchPort(ports ...uint16) Match { return matchValues(matchPort, "Port", ports) }

// MatchPortRange matches UDP and TCP packets to the ports from first to last.
func MatchPortRange(first, last uint16) Match {
	return matchRange(matchPort, "PortRange", first, last)
}

// MatchSourcePort matches UDP and TCP packets from one of the ports.
func MatchSourcePort(ports ...uint16) Match {
	return matchValues(matchSourcePort, "SourcePort", ports)
}

// MatchSourcePortRange matches UDP and TCP packets from the ports from first to last.
func MatchSourcePortRange(first, last uint16) Match {
	return matchRange(matchSourcePort, "SourcePortRange", first, last)
}

// MatchSource matches IP packets from an address in one of the prefixes.
func MatchSource(prefixes ...netip.Prefix) Match {
	return matchPrefixes(matchSource, "Source", prefixes)
}

// MatchDestination matches IP packets to an address in one of the prefixes.
func MatchDestination(prefixes ...netip.Prefix) Match {
	return matchPrefixes(matchDestination, "Destination", prefixes)
}

// And matches packets that m and all others match. It is no error if no packet does, as for
// MatchUDP(53).And(MatchTCP(53)).
func (m Match) And(others ...Match) Match { return combine(matchAnd, m, others) }

// Or matches packets that m or one of the others matches.
func (m Match) Or(others ...Match) Match { return combine(matchOr, m, others) }

// Not matches all packets that m does not match. Alone it takes traffic that the machine needs,
// like [MatchAll]: narrow it with And.
func (m Match) Not() Match { return combine(matchNot, m, nil) }

func matchRange(op matchOp, name string, first, last uint16) Match {
	if first > last {
		return Match{err: fmt.Errorf("%w: Match%s from %d to %d", ErrConfig, name, first, last)}
	}
	return Match{op: op, first: first, last: last}
}

// matchValues returns the alternative of several values. An empty list must not match everything,
// and a Match of nothing would be useless, so it is invalid.
func matchValues(op matchOp, name string, values []uint16) Match {
	any := make([]Match, len(values))
	for i, v := range values {
		any[i] = Match{op: op, first: v, last: v}
	}
	return alternative(name, any)
}

func matchPrefixes(op matchOp, name string, prefixes []netip.Prefix) Match {
	any := make([]Match, len(prefixes))
	for i, p := range prefixes {
		if !p.IsValid() || p.Addr().Is4In6() {
			return Match{err: fmt.Errorf("%w: Match%s(%v): no prefix of IPv4 or IPv6", ErrConfig, name, p)}
		}
		any[i] = Match{op: op, prefix: p.Masked()}
	}
	return alternative(name, any)
}

func alternative(name string, any []Match) Match {
	switch len(any) {
	case 0:
		return Match{err: fmt.Errorf("%w: Match%s of nothing", ErrConfig, name)}
	case 1:
		return any[0]
	}
	return Match{op: matchOr, args: any}
}

// combine copies others, which belong to the caller.
func combine(op matchOp, m Match, others []Match) Match {
	args := append([]Match{m}, others...)
	for _, a := range args {
		if a.op == matchInvalid {
			return Match{err: a.Err()}
		}
	}
	return Match{op: op, args: args}
}

// Err returns why a Match is invalid, an ErrConfig, or nil.
func (m Match) Err() error {
	switch {
	case m.err != nil:
		return m.err
	case m.op == matchInvalid:
		return fmt.Errorf("%w: no Match: say which packets are to leave the kernel's stack, as with MatchUDP; MatchAll is for every packet, ARP and SSH included", ErrConfig)
	}
	if n := m.conditions(); n > maxConditions {
		return fmt.Errorf("%w: a Match of %d conditions; the limit is %d", ErrConfig, n, maxConditions)
	}
	return nil
}

func (m Match) conditions() int {
	if len(m.args) == 0 {
		return 1
	}
	n := 0
	for _, a := range m.args {
		n += a.conditions()
	}
	return n
}

// Packet reports whether a program made from m takes the packet, which starts with its Ethernet
// header. An invalid Match, and bytes shorter than that header, which never reach a program, give
// false.
func (m Match) Packet(packet []byte) bool {
	return len(packet) >= 14 && m.Err() == nil && m.holds(look(packet))
}

// headers are the fields to which a Match applies.
type headers struct {
	vlan        uint16 // 0 without a tag
	etherType   uint16
	ip          bool // the fields below are those of an IP packet
	protocol    uint8
	from, to    netip.Addr
	ports       bool // the fields below are those of a UDP or TCP packet
	source, dst uint16
}

const (
	etherIPv4, etherIPv6, etherVLAN = 0x0800, 0x86dd, 0x8100
	etherServiceVLAN                = 0x88a8 // 802.1ad
	vlanField, lastVLAN             = 0xfff, 4094
	protoTCP, protoUDP              = 6, 17
	plainIPv4                       = 0x45   // version 4, five words: no options
	fragmentField                   = 0x3fff // of the field: all bits except "don't fragment"
	portsRoom                       = 8      // a UDP header; also the least for a TCP packet with ports
)

// look reads the headers of an Ethernet packet. A truncated tag counts as an unknown EtherType, and
// so does the type of a packet whose contents contradict it.
func look(packet []byte) (h headers) {
	h.etherType = binary.BigEndian.Uint16(packet[12:])
	body := packet[14:]
	if h.etherType == etherVLAN && len(body) >= 4 {
		h.vlan = binary.BigEndian.Uint16(body) & vlanField
		h.etherType = binary.BigEndian.Uint16(body[2:])
		body = body[4:]
	}
	switch {
	case h.etherType == etherIPv4 && len(body) >= 20 && body[0]>>4 == 4 && body[0]&15 >= 5:
		h.ip, h.protocol = true, body[9]
		h.from, h.to = netip.AddrFrom4([4]byte(body[12:])), netip.AddrFrom4([4]byte(body[16:]))
		if body[0] == plainIPv4 && binary.BigEndian.Uint16(body[6:])&fragmentField == 0 {
			h.lookAtPorts(body[20:])
		}
	case h.etherType == etherIPv6 && len(body) >= 40 && body[0]>>4 == 6:
		h.ip, h.protocol = true, body[6]
		h.from, h.to = netip.AddrFrom16([16]byte(body[8:])), netip.AddrFrom16([16]byte(body[24:]))
		h.lookAtPorts(body[40:])
	}
	return h
}

func (h *headers) lookAtPorts(body []byte) {
	if (h.protocol == protoUDP || h.protocol == protoTCP) && len(body) >= portsRoom {
		h.ports, h.source, h.dst = true, binary.BigEndian.Uint16(body), binary.BigEndian.Uint16(body[2:])
	}
}

func (m Match) holds(h headers) bool {
	in := func(v uint16) bool { return m.first <= v && v <= m.last }
	switch m.op {
	case matchAll:
		return true
	case matchAnd:
		for _, a := range m.args {
			if !a.holds(h) {
				return false
			}
		}
		return true
	case matchOr:
		for _, a := range m.args {
			if a.holds(h) {
				return true
			}
		}
		return false
	case matchNot:
		return !m.args[0].holds(h)
	case matchEtherType:
		return in(h.etherType)
	case matchProtocol:
		return h.ip && in(uint16(h.protocol))
	case matchSourcePort:
		return h.ports && in(h.source)
	case matchPort:
		return h.ports && in(h.dst)
	case matchSource:
		return h.ip && m.prefix.Contains(h.from)
	case matchDestination:
		return h.ip && m.prefix.Contains(h.to)
	case matchVLAN:
		return in(h.vlan)
	}
	return false
}

// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"encoding/binary"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/aggregator/vectors"
	"github.com/libra-ina/libra/wire"
)

// hostileVectors are frames that are not applied, and one that is, to a job that
// takes one layout only. Slot 30 of every lane is out of range.
func hostileVectors(name string, layout aggregator.Layouts, maxStripes int) *vectors.File {
	s := newScript(name, "frames that are damaged, not for the aggregator, not of an admitted sender, or refused; one is applied")
	cfg := aggregator.JobConfig{ID: 2, Epoch: 3, Exp: -46, Slots: 30, MaxStripes: maxStripes, Layouts: layout}
	flags, other := wire.FlagDense, wire.Flags(0)
	if layout == aggregator.Aligned {
		cfg.Slots *= wire.Lanes
		flags, other = other, flags
	}
	s.addJob(1, cfg)
	one := number(aggregator.Exact, 1)
	good := func() []byte { return stripes(s.header(0, 1, flags), []bitsPair{{0, 29, one}, {2, 3, one}}) }
	frame := func() []byte { return seal(conformance.Host(0), conformance.Aggregator, good()) }
	const ip, udp = 14, 34
	raw := func(about string, change func(f []byte) []byte) { s.frame(about, change(frame())) }
	raw("another EtherType", func(f []byte) []byte { f[12], f[13] = 0x08, 0x06; return f })
	raw("a fragment", func(f []byte) []byte { f[ip+6] |= 0x20; return f })
	raw("IPv4 options", func(f []byte) []byte { f[ip]++; return f })
	raw("another UDP port", func(f []byte) []byte { f[udp+3]++; return f })
	raw("two tags", func(f []byte) []byte { return withTag(withTag(f)) })
	raw("a frame that ends within the UDP header", func(f []byte) []byte { return f[:udp+7] })
	raw("IPv4 header checksum", func(f []byte) []byte { f[ip+10]++; return f })
	raw("UDP checksum", func(f []byte) []byte { f[len(f)-1]++; return f })
	raw("no UDP checksum", func(f []byte) []byte { f[udp+6], f[udp+7] = 0, 0; return f })
	raw("a UDP checksum over the pseudo header only: left to a network card", func(f []byte) []byte { conformance.PartialChecksum(f); return f })
	raw("UDP checksum 0 where the sum with it fits", zeroSum)
	raw("cut", func(f []byte) []byte { return f[:len(f)-1] })
	raw("UDP length below 8", func(f []byte) []byte { f[udp+4], f[udp+5] = 0, 7; return f })

	payload := func(about string, change func(p []byte) []byte) { s.send(about, 0, change(good())) }
	payload("11 bytes", func(p []byte) []byte { return p[:11] })
	payload("an ACK", func(p []byte) []byte { p[0] = 0x15; return p })
	payload("an ERROR of another version", func(p []byte) []byte { p[0] = 0x26; return p })
	payload("version 2", func(p []byte) []byte { p[0] = 0x21; return p })
	payload("type COLD", func(p []byte) []byte { p[0] = 0x12; return p })
	payload("no such job", func(p []byte) []byte { p[3] = 99; return p })
	payload("job 258, whose low byte is 2", func(p []byte) []byte { p[2] = 1; return p })
	payload("no such sender", func(p []byte) []byte { p[5]++; return p })
	impostor := conformance.Host(0)
	impostor.MAC[5]++
	s.frame("the sender's IP address from another MAC address", seal(impostor, conformance.Aggregator, good()))
	process := conformance.Host(0)
	process.Port++
	s.frame("the sender's addresses, from another UDP port", seal(process, conformance.Aggregator, good()))
	s.frame("the sender's number from another host", seal(conformance.Host(1), conformance.Aggregator, good()))
	payload("another epoch", func(p []byte) []byte { p[7]++; return p })
	payload("no stripe", func(p []byte) []byte { return p[:wire.HeaderLen] })
	payload("one byte too many", func(p []byte) []byte { return append(p, 0) })
	payload("one stripe too many", func(p []byte) []byte { return append(p, make([]byte, maxStripes*wire.StripeLen)...) })
	payload("one stripe too many, and WANT_SUM: the length decides", func(p []byte) []byte {
		p[1] |= byte(wire.FlagWantSum)
		return append(p, make([]byte, maxStripes*wire.StripeLen)...)
	})
	payload("WANT_SUM of a job that combines", func(p []byte) []byte { p[1] |= byte(wire.FlagWantSum); return p })
	payload("the other layout", func(p []byte) []byte { p[1] = byte(other); return p })
	payload("mask bit 31", func(p []byte) []byte { p[wire.HeaderLen] |= 0x80; return p })
	payload("type SCALE", func(p []byte) []byte { p[0] = 0x17; return p })
	payload("several faults: the first check decides", func(p []byte) []byte {
		binary.BigEndian.PutUint16(p[6:], 4) // epoch
		p[1] = byte(wire.FlagWantSum)
		return p[:len(p)-1]
	})
	bad := func(about string, pairs ...bitsPair) {
		s.send(about, 0, stripes(s.header(0, 1, flags), pairs))
	}
	bad("infinity, and before it a rank that is out of range", bitsPair{3, 30, one}, bitsPair{4, 1, 0x7f800000})
	bad("infinity at a rank that is out of range", bitsPair{3, 30, 0xff800000})
	bad("2^17 at a rank that is out of range", bitsPair{3, 30, 0x48000000})
	bad("2^17", bitsPair{2, 1, one}, bitsPair{3, 2, 0x48000000})
	bad("-2^17", bitsPair{21, 2, 0xc8000000})
	raw("UDP checksum 0xffff where the checksum is 0: duplicate or new like any other", func(f []byte) []byte {
		f = zeroSum(f)
		f[udp+6], f[udp+7] = 0xff, 0xff
		return f
	})
	trailing := func(tail ...byte) func(f []byte) []byte {
		return func(f []byte) []byte {
			f = append(f, tail...)
			binary.BigEndian.PutUint16(f[ip+2:], uint16(len(f)-ip))
			fixIPv4(f)
			return f
		}
	}
	again := func(about string, seq byte, change func(f []byte) []byte) {
		p := good()
		p[11] = seq
		s.frame(about, change(seal(conformance.Host(0), conformance.Aggregator, p)))
	}
	again("the IP packet is 3 bytes longer than the UDP datagram", 2, trailing(1, 2, 3))
	again("it is one stripe longer, which is not added", 3, trailing(good()[wire.HeaderLen:]...))
	again("so that the UDP length does not fit a stripe, but with what trails it would", 4, func(f []byte) []byte {
		f = seal(conformance.Host(0), conformance.Aggregator, f[42:len(f)-7])
		return trailing(7, 6, 5, 4, 3, 2, 1)(f)
	})
	raw("intact, and padded", func(f []byte) []byte { return append(f, 1, 2, 3) })
	s.harvest()
	return s.file
}

// addressVectors are frames between hosts, and answers to addresses.
func addressVectors() *vectors.File {
	s := newScript("addresses", "frames between hosts are forwarded or passed on; answers go to where frames come from")
	routed := conformance.Host(2)
	for i, port := range []int{0, 0, 1} {
		s.file.Routes = append(s.file.Routes, vectors.Route{MAC: conformance.Host(i).MAC, Port: port})
	}
	s.addJob(2, aggregator.JobConfig{ID: 2, Mode: aggregator.Sync, Exp: -46, Workers: 2, Slots: 1, MaxStripes: 1}, 0, 5)
	one := func(sender int) []byte {
		return stripes(s.header(sender, 1, 0), []bitsPair{{0, 0, number(aggregator.Exact, 1)}})
	}
	there := seal(conformance.Host(0), routed, one(0))
	s.frame("to a host behind another port", there)
	damaged := slices.Clone(there)
	damaged[len(damaged)-1]++
	s.frame("damaged, to a host behind another port: its receiver will notice", damaged)
	s.frameFrom(1, "and back", seal(routed, conformance.Host(0), one(0)))
	s.frame("to a host of which nothing is known", seal(conformance.Host(0), conformance.Host(3), one(0)))
	s.frame("to a host behind the same port: a flooded frame", seal(conformance.Host(0), conformance.Host(1), one(0)))
	s.frameFrom(1, "by another port than its sender's, which may have moved", seal(conformance.Host(0), conformance.Host(1), one(0)))
	s.frameFrom(1, "by the port of its destination, which is not its sender's", there)
	s.frameFrom(2, "by a third port", there)
	s.frame("from a host of which nothing is known", seal(conformance.Host(3), routed, one(0)))
	s.frame("with a VLAN tag", slices.Concat(there[:12], []byte{0x81, 0, 0, 100}, there[12:]))
	broadcast := conformance.Aggregator
	broadcast.MAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	s.frame("to the aggregator's IP address at the Ethernet broadcast address", seal(conformance.Host(0), broadcast, one(0)))
	s.frame("from another UDP port than the sender was admitted with", seal(conformance.Host(1), conformance.Aggregator, one(1)))
	port := conformance.Host(1)
	port.Port = 5
	s.frame("from its port: all is complete, and the answer has the aggregator's port twice", seal(port, conformance.Aggregator, one(1)))
	s.frame("the result again, to that port", seal(port, conformance.Aggregator, one(1)))
	return s.file
}

// zeroSum chooses the bits of an unused lane of a frame so that the UDP checksum
// computes to 0, and writes that, where 0xffff belongs.
func zeroSum(f []byte) []byte {
	const check = 40
	unused := f[wire.EnvelopeLen+wire.HeaderLen+4+4*1:] // lane 1 of stripe 0
	binary.BigEndian.PutUint16(unused, binary.BigEndian.Uint16(f[check:]))
	binary.BigEndian.PutUint16(f[check:], 0)
	return f
}

// fixIPv4 gives an untagged frame's IPv4 header its checksum.
func fixIPv4(f []byte) {
	h := f[14:34]
	binary.BigEndian.PutUint16(h[10:], 0)
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum>>16+sum&0xffff))
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// serialized is a UDP packet that gopacket wrote, checksums included.
func serialized(t testing.TB, from, to netip.AddrPort, vlan bool, payload []byte) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	var ip interface {
		gopacket.SerializableLayer
		gopacket.NetworkLayer
	} = &layers.IPv4{Version: 4, TTL: 3, Protocol: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	if from.Addr().Is6() {
		eth.EthernetType = layers.EthernetTypeIPv6
		ip = &layers.IPv6{Version: 6, HopLimit: 3, NextHeader: layers.IPProtocolUDP, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	}
	stack := []gopacket.SerializableLayer{eth, ip, udp, gopacket.Payload(payload)}
	if vlan {
		tag := &layers.Dot1Q{VLANIdentifier: 42, Type: eth.EthernetType}
		eth.EthernetType = layers.EthernetTypeDot1Q
		stack = append([]gopacket.SerializableLayer{eth, tag}, stack[1:]...)
	}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, stack...); err != nil {
		t.Fatal(err)
	}
	return append(make([]byte, 0, 2048), buf.Bytes()...)
}

var addressPairs = [][2]netip.AddrPort{
	{netip.MustParseAddrPort("192.0.2.1:4000"), netip.MustParseAddrPort("198.51.100.255:53")},
	{netip.MustParseAddrPort("[2001:db8::1]:65535"), netip.MustParseAddrPort("[fe80::2]:1")},
}

// A UDP packet is parsed, and its answer equals, byte for byte, gopacket's for the other direction.
func TestUDPReply(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for i := range 400 {
		from, to := addressPairs[i%2][0], addressPairs[i%2][1]
		vlan := i/2%2 == 1
		question, answer := random(r.IntN(70)), random(r.IntN(300))
		packet := serialized(t, from, to, vlan, question)
		headers := 14 + 20 + 8
		if from.Addr().Is6() {
			headers += 20
		}
		if vlan {
			headers += 4
		}
		padded := packet[:len(packet)+r.IntN(9)]
		u, ok := ParseUDP(padded)
		if !ok {
			t.Fatalf("no UDP packet: %x", padded)
		}
		tci, tagged := u.VLAN()
		if u.Source() != from || u.Destination() != to || !bytes.Equal(u.Payload(), question) || tagged != vlan || vlan && tci != 42 {
			t.Fatalf("read %v to %v, tag %d, %x", u.Source(), u.Destination(), tci, u.Payload())
		}
		if cap(u.Payload()) != cap(packet)-headers {
			t.Fatalf("room for %d bytes", cap(u.Payload()))
		}
		if !u.ChecksumValid() {
			t.Fatal("valid checksums are refused")
		}
		if len(question) > 0 {
			u.Payload()[r.IntN(len(question))] ^= 1 << r.IntN(8)
			if u.ChecksumValid() {
				t.Fatal("a changed payload is taken")
			}
		}
		if i%3 == 0 { // the packet's own payload, shorter
			answer = u.Payload()[:len(question)/2]
		}
		want := serialized(t, to, from, vlan, answer)[:headers+len(answer)]
		swap(want, 0, 6) // serialized has the addresses of the question
		ip := want[14:]
		if vlan {
			ip = want[18:]
		}
		if from.Addr().Is4() {
			ip[8], ip[10], ip[11] = 64, 0, 0
			binary.BigEndian.PutUint16(ip[10:], ^fold(sum(0, ip[:20])))
		} else {
			ip[7] = 64
		}
		n, err := u.Reply(answer)
		if err != nil || !bytes.Equal(packet[:n], want) {
			t.Fatalf("answer, %v:\n%x, want\n%x", err, packet[:n], want)
		}
		if again, ok := ParseUDP(packet[:n]); !ok || !again.ChecksumValid() {
			t.Fatal("the answer is no valid packet")
		}
	}
}

// A sum of zero is sent in its other form: zero would mean that there is none.
func TestUDPChecksumIsNotZero(t *testing.T) {
	from, to := addressPairs[1][0], addressPairs[1][1]
	packet := serialized(t, from, to, false, []byte{0, 0})
	u, _ := ParseUDP(packet)
	if _, err := u.Reply(u.Payload()); err != nil {
		t.Fatal(err)
	}
	// The payload replaces the checksum, which then becomes zero.
	payload := bytes.Clone(packet[u.udp+6 : u.udp+8])
	if _, err := u.Reply(payload); err != nil {
		t.Fatal(err)
	}
	if got := binary.BigEndian.Uint16(packet[u.udp+6:]); got != 0xffff || !u.ChecksumValid() {
		t.Errorf("checksum %#x", got)
	}
	packet[u.udp+6], packet[u.udp+7] = 0, 0
	if u.ChecksumValid() {
		t.Error("IPv6 without a checksum is taken")
	}
	packet = serialized(t, addressPairs[0][0], addressPairs[0][1], false, []byte{1})
	u, _ = ParseUDP(packet)
	packet[u.udp+6], packet[u.udp+7] = 0, 0
	if !u.ChecksumValid() {
		t.Error("IPv4 without a checksum is refused")
	}
	packet[u.ip+8]++
	if u.ChecksumValid() {
		t.Error("a wrong sum of the IPv4 header is taken")
	}
}

func TestUDPRefusals(t *testing.T) {
	from, to := addressPairs[0][0], addressPairs[0][1]
	for name, p := range map[string][]byte{
		"nothing": nil, "TCP": udpPacket(false, false, 9, func(ip []byte) { ip[9] = 6 }),
		"fragment":          udpPacket(false, false, 9, func(ip []byte) { ip[6] = 0x20 }),
		"zero length of IP": udpPacket(false, false, 9, nil),
	} {
		if _, ok := ParseUDP(p); ok {
			t.Errorf("%s is a UDP packet", name)
		}
	}
	for name, mangle := range map[string]func(p []byte){
		"IP beyond the packet": func(p []byte) { p[14+3]++ },
		"UDP beyond IP":        func(p []byte) { p[14+20+5]++ },
		"UDP without a header": func(p []byte) { p[14+20+5] = 7 },
	} {
		p := serialized(t, from, to, false, []byte("a question that is as long as Ethernet wants"))
		if _, ok := ParseUDP(p); !ok {
			t.Fatal("refused before")
		}
		if mangle(p); func() bool { _, ok := ParseUDP(p); return ok }() {
			t.Errorf("%s is a UDP packet", name)
		}
	}
	at := netip.MustParseAddrPort
	for name, c := range map[string]struct {
		from, to netip.AddrPort
		mangle   func(p []byte)
		payload  int
		words    string
	}{
		"too long for the frame": {from, to, nil, 2048, "there is room for 2006"},
		"to all machines":        {from, at("255.255.255.255:9"), nil, 4, "has no answer"},
		"multicast":              {from, at("224.0.0.1:9"), nil, 4, "has no answer"},
		"multicast, IPv6":        {at("[fe80::1]:7"), at("[ff02::1]:9"), nil, 4, "has no answer"},
		"to an Ethernet group":   {from, to, func(p []byte) { p[0] = 0xff }, 4, "has no answer"},
		"from an Ethernet group": {from, to, func(p []byte) { p[6] |= 1 }, 4, "has no answer"},
		"from several":           {at("224.0.0.1:9"), to, nil, 4, "has no answer"},
		"from nowhere":           {at("0.0.0.0:9"), to, nil, 4, "has no answer"},
		"from no port":           {at("192.0.2.1:0"), to, nil, 4, "has no answer"},
	} {
		p := serialized(t, c.from, c.to, false, []byte("question"))
		if c.mangle != nil {
			c.mangle(p)
		}
		before := bytes.Clone(p)
		u, ok := ParseUDP(p)
		if !ok {
			t.Fatal(name)
		}
		if _, err := u.Reply(make([]byte, c.payload)); !errors.Is(err, ErrDescriptor) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Equal(p, before) {
			t.Errorf("%s: the packet changed", name)
		}
	}
	long := append(make([]byte, 0, 1<<17), serialized(t, from, to, false, nil)...)
	u, _ := ParseUDP(long)
	if _, err := u.Reply(make([]byte, 1<<16-1-28)); err != nil {
		t.Error(err)
	}
	if _, err := u.Reply(make([]byte, 1<<16-28)); !errors.Is(err, ErrDescriptor) {
		t.Error("longer than an IP packet:", err)
	}
}

// A reply allocates nothing.
func TestUDPDoesNotAllocate(t *testing.T) {
	packet := serialized(t, addressPairs[0][0], addressPairs[0][1], false, []byte("question"))
	if n := testing.AllocsPerRun(100, func() {
		u, ok := ParseUDP(packet)
		if !ok || !u.Source().IsValid() {
			t.Fatal("no packet")
		}
		if _, err := u.Reply(u.Payload()); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

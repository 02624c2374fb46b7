// SPDX-License-Identifier: Apache-2.0

//go:build linux

package afxdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// A matcher generates random matches and packets of few values, so that they often match.
type matcher struct{ *rand.Rand }

var (
	someTypes     = []uint16{etherIPv4, etherIPv6, etherVLAN, etherServiceVLAN, 0x0806, 0x88b5, 0}
	someProtocols = []uint8{protoUDP, protoTCP, 1, 58, 44, 132}
	somePorts     = []uint16{0, 1, 53, 9000, 9001, 0x2823, 32768, 65535}
	someAddresses = []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("192.0.3.1"),
		netip.MustParseAddr("255.255.255.255"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("2001:db8::1"),
		netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8:0:0:8000::1"), netip.MustParseAddr("ff02::1"), netip.MustParseAddr("::"),
	}
)

func pick[T any](r matcher, of []T) T { return of[r.IntN(len(of))] }

func (r matcher) prefixes() []netip.Prefix {
	out := make([]netip.Prefix, 1+r.IntN(3))
	for i := range out {
		a := pick(r, someAddresses)
		bits := a.BitLen() - r.IntN(3)
		if r.IntN(2) == 0 {
			bits = r.IntN(a.BitLen() + 1)
		}
		out[i] = netip.PrefixFrom(a, bits)
	}
	return out
}

func (r matcher) match(depth int) Match {
	if depth > 0 && r.IntN(4) > 0 {
		m, others := r.match(depth-1), make([]Match, r.IntN(3))
		for i := range others {
			others[i] = r.match(depth - 1)
		}
		switch r.IntN(3) {
		case 0:
			return m.And(others...)
		case 1:
			return m.Or(others...)
		}
		return m.Not()
	}
	ports := []uint16{pick(r, somePorts), pick(r, somePorts)}
	first, last := min(ports[0], ports[1]), max(ports[0], ports[1])
	switch r.IntN(13) {
	case 0:
		return MatchAll()
	case 1:
		return MatchEtherType(pick(r, someTypes), pick(r, someTypes))
	case 2:
		return MatchProtocol(pick(r, someProtocols))
	case 3:
		return MatchUDP(ports...)
	case 4:
		return MatchTCP(ports[0])
	case 5:
		return MatchPort(ports...)
	case 6:
		return MatchPortRange(first, last)
	case 7:
		return MatchSourcePort(ports...)
	case 8:
		return MatchSourcePortRange(first, last)
	case 9:
		return MatchSource(r.prefixes()...)
	case 10:
		return MatchUntagged()
	case 11:
		return MatchVLAN(7, uint16(1+r.IntN(0xffe)))
	}
	return MatchDestination(r.prefixes()...)
}

func (r matcher) packet() []byte {
	p := make([]byte, 12, 128)
	for range r.IntN(8) / 5 * (1 + r.IntN(2)) {
		p = binary.BigEndian.AppendUint16(p, etherVLAN)
		p = append(p, byte(r.IntN(256)), pick(r, []byte{7, 0}))
		if r.IntN(2) == 0 {
			p[len(p)-2] &= 0xf0 // a priority, and the VLANs 0 or 7
		}
	}
	from, to := pick(r, someAddresses), pick(r, someAddresses)
	for to.Is4() != from.Is4() {
		to = pick(r, someAddresses)
	}
	kind := uint16(etherIPv6)
	ip := make([]byte, 40)
	ip[0], ip[6] = 0x60|byte(r.IntN(16)), pick(r, someProtocols)
	copy(ip[8:], from.AsSlice())
	copy(ip[24:], to.AsSlice())
	if from.Is4() {
		kind, ip = etherIPv4, make([]byte, 20)
		ip[0], ip[9] = 0x45, pick(r, someProtocols)
		copy(ip[12:], from.AsSlice())
		copy(ip[16:], to.AsSlice())
		if r.IntN(4) == 0 {
			ip[0] = 0x40 | pick(r, []byte{0, 4, 6, 15}) // options, or too short
		}
		if r.IntN(2) == 0 {
			ip[6+r.IntN(2)] = 1 << r.IntN(8) // fragments, among others
		}
	}
	if r.IntN(8) == 0 {
		ip[0] ^= 1 << (4 + r.IntN(4)) // another version
	}
	if r.IntN(6) == 0 {
		kind = pick(r, someTypes)
	}
	p = append(binary.BigEndian.AppendUint16(p, kind), ip...)
	p = binary.BigEndian.AppendUint16(p, pick(r, somePorts))
	p = binary.BigEndian.AppendUint16(p, pick(r, somePorts))
	p = append(p, make([]byte, 4+r.IntN(20))...)
	if r.IntN(6) == 0 {
		p = p[:14+r.IntN(len(p)-14)]
	} else if r.IntN(10) == 0 { // where headers end
		p = p[:min(len(p), pick(r, []int{14, 18, 34, 38, 42, 46, 54, 58, 62, 66}))]
	}
	return p
}

// loadMatch returns a program that drops matching packets, because redirecting needs a socket.
func loadMatch(t *testing.T, m Match) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL",
		Instructions: m.program(nil, asm.Instructions{asm.Mov.Imm(asm.R0, xdpDrop), asm.Return()}),
	})
	if err != nil {
		t.Fatalf("%+v: %+v", m, err)
	}
	return prog
}

const xdpDrop = 1

// The program of a Match takes exactly the packets that Match.Packet accepts.
func TestMatchAsItsProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to load XDP programs")
	}
	for seed := range uint64(150) {
		r := matcher{rand.New(rand.NewPCG(seed, 12))}
		m := r.match(3)
		prog := loadMatch(t, m)
		for range 100 {
			p := r.packet()
			want := uint32(xdpPass)
			if m.Packet(p) {
				want = xdpDrop
			}
			if got, err := prog.Run(&ebpf.RunOptions{Data: p}); err != nil || got != want {
				t.Fatalf("seed %d: verdict %d, %v, want %d for packet\n%x\nand match %+v", seed, got, err, want, p, m)
			}
		}
		if err := prog.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A packet is matched by its own headers.
func TestMatchPacket(t *testing.T) {
	prefix := netip.MustParsePrefix
	v4 := func(from, to string, mangle func(ip []byte)) []byte {
		return udpPacket(false, false, 9000, func(ip []byte) {
			copy(ip[12:], netip.MustParseAddr(from).AsSlice())
			copy(ip[16:], netip.MustParseAddr(to).AsSlice())
			if mangle != nil {
				mangle(ip)
			}
		})
	}
	udp, udp6 := v4("192.0.2.1", "198.51.100.2", nil), udpPacket(true, true, 9000, func(ip []byte) {
		copy(ip[8:], netip.MustParseAddr("2001:db8::1").AsSlice())
	})
	tcp := v4("192.0.2.1", "198.51.100.2", func(ip []byte) { ip[9] = 6 })
	fragmented := v4("192.0.2.1", "198.51.100.2", func(ip []byte) { ip[6] = 0x20 })
	tagged := func(number uint16, more ...byte) []byte {
		p := append(append([]byte{}, udp[:12]...), 0x81, 0, 0xa0|byte(number>>8), byte(number))
		return append(append(p, more...), udp[12:]...)
	}
	priority, vlan10, stacked := tagged(0), tagged(10), tagged(0, 0x81, 0, 0, 10)
	service := append(append(append([]byte{}, udp[:12]...), 0x88, 0xa8, 0, 10), udp[12:]...)
	arp := append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6}, make([]byte, 46)...)
	for name, c := range map[string]struct {
		match Match
		takes [][]byte
		not   [][]byte
	}{
		"all":          {MatchAll(), [][]byte{udp, udp6, tcp, fragmented, arp}, [][]byte{udp[:13]}},
		"UDP":          {MatchUDP(53, 9000), [][]byte{udp, udp6}, [][]byte{tcp, fragmented, arp}},
		"other UDP":    {MatchUDP(53), nil, [][]byte{udp, udp6, tcp}},
		"TCP":          {MatchTCP(9000), [][]byte{tcp}, [][]byte{udp, arp}},
		"port":         {MatchPort(9000), [][]byte{udp, udp6, tcp}, [][]byte{fragmented, arp}},
		"range":        {MatchPortRange(8999, 9000), [][]byte{udp, tcp}, [][]byte{arp}},
		"range before": {MatchPortRange(1, 8999), nil, [][]byte{udp, tcp}},
		"from port":    {MatchSourcePort(0), [][]byte{udp, udp6, tcp}, [][]byte{fragmented}},
		"from range":   {MatchSourcePortRange(1, 65535), nil, [][]byte{udp, tcp}},
		"protocol":     {MatchProtocol(17), [][]byte{udp, udp6, fragmented}, [][]byte{tcp, arp}},
		"EtherType":    {MatchEtherType(0x0806, 0x86dd), [][]byte{arp, udp6}, [][]byte{udp}},
		"from":         {MatchSource(prefix("192.0.2.77/24")), [][]byte{udp, tcp, fragmented}, [][]byte{udp6, arp}},
		"from IPv6":    {MatchSource(prefix("2001:db8::/33")), [][]byte{udp6}, [][]byte{udp, arp}},
		"to":           {MatchDestination(prefix("192.0.2.0/24"), prefix("198.51.100.2/32")), [][]byte{udp, tcp}, [][]byte{udp6}},
		"and":          {MatchPort(9000).And(MatchProtocol(6)), [][]byte{tcp}, [][]byte{udp}},
		"or":           {MatchEtherType(0x0806).Or(MatchTCP(9000)), [][]byte{tcp, arp}, [][]byte{udp}},
		"not":          {MatchUDP(9000).Not(), [][]byte{tcp, arp, fragmented}, [][]byte{udp, udp6}},
		"untagged": {MatchUntagged(), [][]byte{udp, priority, arp}, [][]byte{vlan10, stacked, service, tagged(0)[:16],
			udp6}},
		"VLAN":        {MatchVLAN(42, 10), [][]byte{vlan10, udp6}, [][]byte{udp, priority, stacked, service, tagged(266)}},
		"UDP of none": {MatchUDP(9000).And(MatchUntagged()), [][]byte{udp, priority}, [][]byte{vlan10, arp}},
		"of any VLAN": {MatchUntagged().Not(), [][]byte{vlan10, stacked, service}, [][]byte{udp, priority, arp}},
		"invalid":     {Match{}, nil, [][]byte{udp, arp}},
	} {
		for _, p := range c.takes {
			if !c.match.Packet(p) {
				t.Errorf("%s does not match %x", name, p)
			}
		}
		for _, p := range c.not {
			if c.match.Packet(p) {
				t.Errorf("%s matches %x", name, p)
			}
		}
	}
}

func TestMatchErrors(t *testing.T) {
	var many []uint16
	for p := range uint16(maxConditions + 1) {
		many = append(many, p)
	}
	for name, c := range map[string]struct {
		match Match
		words string
	}{
		"zero":              {Match{}, "MatchAll is for every packet"},
		"not of zero":       {Match{}.Not(), "no Match"},
		"and with zero":     {MatchUDP(1).And(Match{}), "no Match"},
		"or with invalid":   {MatchAll().Or(MatchUDP()), "MatchUDP of nothing"},
		"no TCP port":       {MatchTCP(), "MatchTCP of nothing"},
		"no types":          {MatchEtherType(), "MatchEtherType of nothing"},
		"no protocol":       {MatchProtocol(), "MatchProtocol of nothing"},
		"no source":         {MatchSource(), "MatchSource of nothing"},
		"zero prefix":       {MatchDestination(netip.Prefix{}), "MatchDestination(invalid Prefix)"},
		"mapped prefix":     {MatchSource(netip.MustParsePrefix("::ffff:1.2.3.0/120")), "no prefix of IPv4 or IPv6"},
		"no VLAN":           {MatchVLAN(), "MatchVLAN of nothing"},
		"VLAN 0":            {MatchVLAN(10, 0), "MatchUntagged is for packets of none"},
		"VLAN 4095":         {MatchVLAN(4095), "from 1 to 4094"},
		"range upside-down": {MatchSourcePortRange(2, 1), "MatchSourcePortRange from 2 to 1"},
		"too many":          {MatchPort(many...), fmt.Sprintf("%d conditions", maxConditions+1)},
	} {
		if err := c.match.Err(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", name, err)
		}
		if c.match.Packet(make([]byte, 60)) {
			t.Errorf("%s matches", name)
		}
	}
}

// The largest Match, of the longest conditions, is within the verifier's limits.
func TestLargestMatch(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to load XDP programs")
	}
	var prefixes []netip.Prefix
	for i := range maxConditions - 1 {
		a := netip.MustParseAddr("2001:db8::").As16()
		binary.BigEndian.PutUint16(a[14:], uint16(i))
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom16(a), 127))
	}
	m := MatchSource(prefixes...).And(MatchPort(9000))
	if err := m.Err(); err != nil {
		t.Fatal(err)
	}
	prog := loadMatch(t, m)
	defer prog.Close()
	p := udpPacket(true, false, 9000, func(ip []byte) {
		copy(ip[8:], prefixes[maxConditions-2].Addr().AsSlice())
	})
	for _, want := range []uint32{xdpDrop, xdpPass} {
		if got, err := prog.Run(&ebpf.RunOptions{Data: p}); got != want || err != nil {
			t.Errorf("verdict %d, %v, want %d", got, err, want)
		}
		p[14+8+1] ^= 1
	}
}

func TestMatchIsRequired(t *testing.T) {
	_, err := Attach(AttachConfig{Interface: "lo"})
	wantErr(t, err, ErrConfig)
	if !strings.Contains(err.Error(), "attach to lo: AttachConfig.Match") || errors.Is(err, unix.EPERM) {
		t.Error(err)
	}
}

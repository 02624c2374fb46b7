// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/libra-ina/libra/wire"
)

func TestFrame(t *testing.T) {
	from := wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 1}, IP: netip.MustParseAddr("10.0.0.1"), Port: testPort}
	to := wire.Endpoint{MAC: [6]byte{2, 0, 0, 0, 0, 2}, IP: netip.MustParseAddr("10.0.0.2"), Port: testPort}
	for _, size := range Sizes() {
		frame, err := buildFrame(from, to, size)
		if err != nil {
			t.Fatal(err)
		}
		if len(frame) != size {
			t.Errorf("frame of %d bytes, want %d", len(frame), size)
		}
		p := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
		if p.ErrorLayer() != nil {
			t.Fatal(p.ErrorLayer().Error())
		}
		udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !ok || udp.DstPort != testPort || udp.SrcPort != testPort || udp.Checksum != 0 {
			t.Fatalf("UDP layer %v", udp)
		}
		if sum := onesSum(frame[14:34]); sum != 0xffff {
			t.Errorf("IPv4 checksum: the header adds up to %#x", sum)
		}
		turnRound(frame)
		if [6]byte(frame) != from.MAC || [6]byte(frame[6:]) != to.MAC {
			t.Errorf("turned round: % x", frame[:12])
		}
	}
}

// onesSum adds up 16-bit words in one's complement (RFC 1071).
func onesSum(b []byte) uint16 {
	var sum uint32
	for i, v := range b {
		sum += uint32(v) << (8 * ((i + 1) % 2))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// The C program maps the same memory.
func TestControlHasTheLayoutOfTheCProgram(t *testing.T) {
	source, err := os.ReadFile("../baselines/xdp.c")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uintptr{}
	for _, m := range regexp.MustCompile(`offsetof\(struct control, (\w+)\) == (\d+)`).FindAllStringSubmatch(string(source), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		got[m[1]] = uintptr(n)
	}
	var c control
	want := map[string]uintptr{
		"phase": unsafe.Offsetof(c.phase), "frame_len": unsafe.Offsetof(c.frameLen),
		"received": unsafe.Offsetof(c.received), "samples": unsafe.Offsetof(c.samples),
		"at": unsafe.Offsetof(c.at), "frame": unsafe.Offsetof(c.frame), "round_trip": unsafe.Offsetof(c.roundTrip),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

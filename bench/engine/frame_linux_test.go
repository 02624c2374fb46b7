package engine

import (
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

func TestFrame(t *testing.T) {
	from := endpoint{mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, ip: netip.MustParseAddr("10.0.0.1")}
	to := endpoint{mac: net.HardwareAddr{2, 0, 0, 0, 0, 2}, ip: netip.MustParseAddr("10.0.0.2")}
	for _, size := range Sizes() {
		for _, checksum := range []bool{false, true} {
			frame, err := buildFrame(from, to, size, checksum)
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
			if !ok || udp.DstPort != testPort || udp.SrcPort != testPort {
				t.Fatalf("UDP layer %v", udp)
			}
			if has := udp.Checksum != 0; has != checksum {
				t.Errorf("checksum %#x, want one: %v", udp.Checksum, checksum)
			}
			if sum := onesSum(frame[14:34]); sum != 0xffff {
				t.Errorf("IPv4 checksum: the header adds up to %#x", sum)
			}
			pseudo := append(append([]byte{}, frame[26:34]...), 0, 17, frame[38], frame[39])
			if sum := onesSum(append(pseudo, frame[34:]...)); checksum && sum != 0xffff {
				t.Errorf("UDP checksum: the datagram adds up to %#x", sum)
			}
			turnRound(frame)
			eth := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).LinkLayer().LinkFlow()
			if eth.Src().String() != to.mac.String() || eth.Dst().String() != from.mac.String() {
				t.Errorf("turned round: %v", eth)
			}
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

// The C peer maps the same memory.
func TestControlHasTheLayoutOfTheCPeer(t *testing.T) {
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
		"received": unsafe.Offsetof(c.received), "reseeded": unsafe.Offsetof(c.reseeded), "samples": unsafe.Offsetof(c.samples),
		"at": unsafe.Offsetof(c.at), "frame": unsafe.Offsetof(c.frame), "round_trip": unsafe.Offsetof(c.roundTrip),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

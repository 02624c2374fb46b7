// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

var compareEndpoints = cmpopts.EquateComparable(netip.Addr{})

func drawEndpoint(t *rapid.T, label string, v6 bool) wire.Endpoint {
	e := wire.Endpoint{Port: rapid.Uint16().Draw(t, label+" port")}
	copy(e.MAC[:], rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, label+" MAC"))
	if v6 {
		// A mapped address would be an IPv4 address.
		ip := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, label+" IP")
		ip[0] |= 0x20
		e.IP = netip.AddrFrom16([16]byte(ip))
	} else {
		e.IP = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, label+" IP")))
	}
	return e
}

// drawFrame returns a sealed frame and its parts.
func drawFrame(t *rapid.T) (frame []byte, want wire.Packet) {
	v6 := rapid.Bool().Draw(t, "IPv6")
	want.Src, want.Dst = drawEndpoint(t, "source", v6), drawEndpoint(t, "destination", v6)
	want.Payload = rapid.SliceOfN(rapid.Byte(), 0, wire.MaxPayload).Draw(t, "payload")
	return seal(want.Src, want.Dst, want.Payload), want
}

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame, want := drawFrame(t)
		if rapid.Bool().Draw(t, "VLAN") {
			frame = tag(frame, rapid.Uint16().Draw(t, "tag"))
		}
		frame = append(frame, rapid.SliceOfN(rapid.Byte(), 0, 46).Draw(t, "padding")...)
		got, err := wire.ParseFrame(frame, want.Dst.Port)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, compareEndpoints, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("(-sealed +parsed):\n%s", diff)
		}
		if _, err := wire.ParseFrame(frame, want.Dst.Port^1|2); !errors.Is(err, wire.ErrForeign) {
			t.Fatalf("for another port: %v", err)
		}
	})
}

// TestSealMatchesGopacket compares with gopacket's headers and checksums.
func TestSealMatchesGopacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame, p := drawFrame(t)
		eth := &layers.Ethernet{SrcMAC: p.Src.MAC[:], DstMAC: p.Dst.MAC[:], EthernetType: layers.EthernetTypeIPv4}
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.Src.Port), DstPort: layers.UDPPort(p.Dst.Port)}
		var ip gopacket.SerializableLayer
		if p.Src.IP.Is4() {
			v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, Flags: layers.IPv4DontFragment,
				SrcIP: p.Src.IP.AsSlice(), DstIP: p.Dst.IP.AsSlice()}
			ip = v4
			_ = udp.SetNetworkLayerForChecksum(v4)
		} else {
			eth.EthernetType = layers.EthernetTypeIPv6
			v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP,
				SrcIP: p.Src.IP.AsSlice(), DstIP: p.Dst.IP.AsSlice()}
			ip = v6
			_ = udp.SetNetworkLayerForChecksum(v6)
		}
		buf := gopacket.NewSerializeBuffer()
		opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(buf, opts, eth, ip, udp, gopacket.Payload(p.Payload)); err != nil {
			t.Fatal(err)
		}
		// gopacket pads to the shortest Ethernet frame, and keeps a UDP checksum of 0.
		want := buf.Bytes()[:len(frame)]
		if c := len(frame) - len(p.Payload) - 2; want[c] == 0 && want[c+1] == 0 {
			want[c], want[c+1] = 0xff, 0xff
		}
		if diff := cmp.Diff(want, frame); diff != "" {
			t.Fatalf("(-gopacket +Seal):\n%s", diff)
		}
	})
}

func TestReplyIsLikeSealingForTheSender(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame, p := drawFrame(t)
		answer := rapid.SliceOfN(rapid.Byte(), 0, wire.MaxPayload).Draw(t, "answer")
		want := seal(p.Dst, p.Src, answer)
		if !p.Src.IP.Is4() {
			frame[14], frame[15], frame[21] = 0x6f, 0xff, 1 // fields that an answer does not repeat
		}
		if rapid.Bool().Draw(t, "VLAN") {
			id := rapid.Uint16().Draw(t, "tag")
			frame, want = tag(frame, id), tag(want, id)
		}
		offset := len(frame) - len(p.Payload)
		buf := slices.Concat(frame[:offset], answer)
		if got := wire.Reply(buf[:offset], len(answer)); !bytes.Equal(got, want) {
			t.Fatalf("reply  % x\nsealed % x", got, want)
		}
	})
}

func TestBroadcastIsLikeSealingForAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		src, dst := drawEndpoint(t, "source", false), drawEndpoint(t, "destination", false)
		job := rapid.Uint16().Draw(t, "job")
		request := rapid.SliceOfN(rapid.Byte(), 0, wire.MaxPayload).Draw(t, "request")
		answer := rapid.SliceOfN(rapid.Byte(), 0, wire.MaxPayload).Draw(t, "answer")
		frame, want := seal(src, dst, request), seal(dst, wire.AllOf(job, dst.Port), answer)
		if rapid.Bool().Draw(t, "VLAN") {
			id := rapid.Uint16().Draw(t, "tag")
			frame, want = tag(frame, id), tag(want, id)
		}
		offset := len(frame) - len(request)
		buf := slices.Concat(frame[:offset], answer)
		if got := wire.Broadcast(buf[:offset], len(answer), job); !bytes.Equal(got, want) {
			t.Fatalf("broadcast % x\nsealed    % x", got, want)
		}
	})
}

func TestAddressesOfAll(t *testing.T) {
	want := wire.Endpoint{
		MAC: [6]byte{0x01, 0x00, 0x5e, 0x4c, 0x12, 0xfe}, IP: netip.MustParseAddr("239.76.18.254"), Port: 7,
	}
	if got := wire.AllOf(0x12fe, 7); got != want {
		t.Errorf("all senders of job 0x12fe are %x, %v", got.MAC, got)
	}
}

func TestEnvelopeWantsTwoAddressesOfAFamily(t *testing.T) {
	v4, v6 := worker, worker6
	mapped := worker
	mapped.IP = netip.AddrFrom16(worker.IP.As16())
	if _, err := wire.NewEnvelope(v4, v6); err == nil {
		t.Error("IPv4 to IPv6 is accepted")
	}
	for _, ends := range [][2]wire.Endpoint{{{}, v4}, {v4, {}}, {{}, {}}, {v6, v4}} {
		want := "wire: envelope needs a source and a destination address"
		if ends[0].IP.IsValid() && ends[1].IP.IsValid() {
			want = fmt.Sprintf("wire: %v and %v are of different address families", ends[0].IP, ends[1].IP)
		}
		if e, err := wire.NewEnvelope(ends[0], ends[1]); e != nil || err == nil || err.Error() != want {
			t.Errorf("a flow from %v to %v: %v, want %q", ends[0].IP, ends[1].IP, err, want)
		}
	}
	if e, err := wire.NewEnvelope(mapped, v4); err != nil || e.Len() != wire.EnvelopeLen {
		t.Errorf("an IPv4 address in IPv6 form: %v", err)
	}
	if got := v4.String() + " " + v6.String(); got != "10.76.66.1:19522 [fd00:4c42::1]:19522" {
		t.Errorf("endpoints print as %s", got)
	}
}

// TestEnvelopeLengths compares the constants with the written headers.
func TestEnvelopeLengths(t *testing.T) {
	for _, c := range []struct{ frame, constant, want int }{
		{len(seal(worker, switchHost, nil)), wire.EnvelopeLen, 42},
		{len(tag(seal(worker6, switch6, nil), 5)), wire.MaxEnvelopeLen, 66},
	} {
		if c.frame != c.want || c.constant != c.want {
			t.Errorf("%d bytes before the payload, the constant is %d, want %d", c.frame, c.constant, c.want)
		}
	}
	if n := wire.DefaultPayload; n != 1472 || wire.HotLen(wire.DefaultStripes) > n || wire.HotLen(wire.DefaultStripes+1) <= n {
		t.Errorf("DefaultPayload is %d, DefaultStripes %d", n, wire.DefaultStripes)
	}
	// The buffer of 4096 bytes is also for the kernel's headroom and struct skb_shared_info, and
	// for Ethernet header and tag.
	const room = 4096 - 256 - 320 - 18
	frame := len(seal(worker, switchHost, make([]byte, wire.MaxPayload)))
	if ip := frame - 14; ip != wire.MaxMTU || wire.MaxMTU != 3440 || wire.HotLen(wire.MaxStripes) != wire.MaxPayload || ip > room || ip+wire.StripeLen <= room {
		t.Errorf("MaxMTU is %d, MaxPayload %d, MaxStripes %d", wire.MaxMTU, wire.MaxPayload, wire.MaxStripes)
	}
}

// TestTruncatedFrames cuts every golden frame at every byte.
func TestTruncatedFrames(t *testing.T) {
	for _, c := range loadGolden(t) {
		whole, wholeErr := wire.ParseFrame(c.Bytes, wire.DefaultPort)
		end := len(c.Bytes)
		if c.Name == "ack" {
			end -= 6 // the padding
		}
		for n := range c.Bytes {
			p, err := wire.ParseFrame(c.Bytes[:n:n], wire.DefaultPort)
			switch {
			case wholeErr == nil && n >= end:
				if err != nil || !bytes.Equal(p.Payload, whole.Payload) {
					t.Errorf("%s without some padding: %v", c.Name, err)
				}
			case !errors.Is(err, wire.ErrForeign) && !errors.Is(err, wire.ErrTruncated) &&
				(wholeErr == nil || !errors.Is(err, wholeErr)):
				t.Errorf("%s cut to %d bytes: %v", c.Name, n, err)
			}
		}
	}
}

// TestTruncatedPayloads cuts the payload of every golden frame at every byte.
func TestTruncatedPayloads(t *testing.T) {
	for _, c := range loadGolden(t) {
		p, err := wire.ParseFrame(c.Bytes, wire.DefaultPort)
		if err != nil || c.Payload != "ok" || c.Name == "unknown-type" {
			continue
		}
		for n := range p.Payload {
			cut := p.Payload[:n:n]
			h, err := wire.ParseHeader(cut)
			if (err != nil) != (n < wire.HeaderLen) {
				t.Errorf("%s: header of %d bytes: %v", c.Name, n, err)
			}
			if err != nil {
				continue
			}
			var got = c
			err = describeBody(&got, cut, h)
			if whole := (n-wire.HeaderLen)%wire.StripeLen == 0 && n > wire.HeaderLen; len(c.Stripes) > 0 && whole {
				continue // this number of stripes is a valid frame
			}
			if !errors.Is(err, wire.ErrLength) {
				t.Errorf("%s: payload cut to %d of %d bytes: %v", c.Name, n, len(p.Payload), err)
			}
		}
	}
}

// TestSingleBitErrors flips every bit after the Ethernet header. Errors in checksummed bytes must
// be noticed; IPv6 leaves its first and its eighth byte unprotected.
func TestSingleBitErrors(t *testing.T) {
	for _, c := range loadGolden(t) {
		p, err := wire.ParseFrame(c.Bytes, wire.DefaultPort)
		if err != nil || len(c.Bytes) > 300 {
			continue
		}
		ip := bytes.Index(c.Bytes, map[bool][]byte{true: {0x45, 0}, false: {0x60, 0}}[p.Src.IP.Is4()])
		frame := slices.Clone(c.Bytes)
		for bit := range 8 * len(frame) {
			at := bit/8 - ip
			unprotected := !p.Src.IP.Is4() && (at < 4 || at == 7)
			padding := c.Name == "ack" && bit/8 >= len(frame)-6
			if at < 0 || unprotected || padding {
				continue
			}
			frame[bit/8] ^= 1 << (bit % 8)
			if _, err := wire.ParseFrame(frame, wire.DefaultPort); err == nil {
				t.Errorf("%s: flipping bit %d of byte %d goes unnoticed", c.Name, bit%8, bit/8)
			}
			frame[bit/8] ^= 1 << (bit % 8)
		}
	}
}

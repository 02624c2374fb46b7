package engine

import (
	"net"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// testPort is the UDP source and destination port of every frame of a test.
const testPort = 9119

// headersLen is the length of Ethernet, IPv4 and UDP headers.
const headersLen = 14 + 20 + 8

// endpoint is one end of the cable.
type endpoint struct {
	mac net.HardwareAddr
	ip  netip.Addr
}

// buildFrame makes a frame of size bytes. Without a checksum the UDP checksum
// is zero, which means absent.
func buildFrame(from, to endpoint, size int, checksum bool) ([]byte, error) {
	eth := &layers.Ethernet{SrcMAC: from.mac, DstMAC: to.mac, EthernetType: layers.EthernetTypeIPv4}
	ip := &layers.IPv4{
		Version: 4, TTL: 64, Flags: layers.IPv4DontFragment, Protocol: layers.IPProtocolUDP,
		SrcIP: from.ip.AsSlice(), DstIP: to.ip.AsSlice(),
	}
	udp := &layers.UDP{SrcPort: testPort, DstPort: testPort}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		return nil, err
	}
	payload := make(gopacket.Payload, size-headersLen)
	for i := range payload {
		payload[i] = byte(i)
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, eth, ip, udp, payload); err != nil {
		return nil, err
	}
	frame := buf.Bytes()
	if !checksum {
		frame[40], frame[41] = 0, 0
	}
	return frame, nil
}

// turnRound exchanges the MAC addresses of a frame.
func turnRound(frame []byte) {
	var mac [6]byte
	copy(mac[:], frame[0:6])
	copy(frame[0:6], frame[6:12])
	copy(frame[6:12], mac[:])
}

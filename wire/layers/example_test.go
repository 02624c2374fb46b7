// SPDX-License-Identifier: Apache-2.0

package layers_test

import (
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/libra-ina/libra/wire"
	libralayers "github.com/libra-ina/libra/wire/layers"
)

// A program with gopacket decodes a frame.
func Example() {
	host := wire.Endpoint{IP: netip.MustParseAddr("192.0.2.2"), Port: wire.DefaultPort}
	e, err := wire.NewEnvelope(host, host)
	if err != nil {
		panic(err)
	}
	frame := make([]byte, e.Len()+wire.HotLen(1))
	wire.Header{Type: wire.TypeHot, Job: 5, Seq: 9}.Put(e.Payload(frame, wire.HotLen(1)))
	e.Seal(frame)

	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if l, ok := packet.Layer(libralayers.LayerTypeLibra).(*libralayers.Libra); ok {
		fmt.Println(l.Header.Type, l.Header.Job, l.Header.Seq)
	}
	// Output: HOT 5 9
}

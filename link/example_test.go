// SPDX-License-Identifier: Apache-2.0

package link_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// Two links on the loopback interface: one sends a frame, the other writes an answer over it and
// sends that back. A real endpoint repeats unanswered frames.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	open := func() link.Link {
		l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		check(err)
		return l
	}
	a, b := open(), open()
	defer a.Close()
	defer b.Close()
	receive := func(l link.Link) []link.Packet {
		pkts := make([]link.Packet, 64)
		for {
			n, err := l.Receive(pkts)
			check(err)
			if n > 0 {
				return pkts[:n]
			}
			check(l.Wait(-1))
		}
	}

	to, err := a.Path(context.Background(), b.Local())
	check(err)
	buf, ok := a.Alloc()
	if !ok {
		fmt.Println("all buffers are in use")
		return
	}
	payload := a.Payload(buf)
	wire.Header{Type: wire.TypePull, Job: 1, Sender: 2, Seq: 3}.Put(payload)
	_, err = a.Send([]link.Frame{{Buf: buf, Len: wire.HeaderLen, To: to}})
	check(err)

	requests := receive(b)
	h, err := wire.ParseHeader(requests[0].Payload)
	check(err)
	fmt.Println("frame", h.Seq, "of sender", h.Sender, "came from the link:", requests[0].Src.AddrPort() == a.Local().AddrPort())
	requests[0].Reply = len(wire.PutAck(requests[0].Payload[:wire.HeaderLen], h))
	check(b.Reply(requests))

	h, err = wire.ParseHeader(receive(a)[0].Payload)
	check(err)
	fmt.Println("answer:", h.Type, h.Seq)
	a.Free(buf) // the frame is no longer repeated
	// Output:
	// frame 3 of sender 2 came from the link: true
	// answer: ACK 3
}

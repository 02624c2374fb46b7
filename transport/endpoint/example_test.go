// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
)

// A server that answers each frame with itself: the loop receives and replies, and runs functions
// of other goroutines between two batches of frames.
func Example() {
	on, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		fmt.Println(err)
		return
	}
	served := 0 // belongs to the goroutine
	var loop endpoint.Loop
	loop.Init(endpoint.Config{Link: on})
	echo := func() error {
		return loop.Serve(func(pkts []link.Packet) error {
			for i := range pkts {
				pkts[i].Reply = len(pkts[i].Payload)
			}
			served += len(pkts)
			return nil
		}, nil)
	}
	loop.Start(echo, func(error) {})

	conn, err := net.Dial("udp", on.Local().AddrPort().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	answer := make([]byte, 16)
	if _, err := conn.Write([]byte("hello")); err != nil {
		fmt.Println(err)
	}
	n, err := conn.Read(answer)
	fmt.Printf("%s %v\n", answer[:n], err)

	if err := loop.Do(context.Background(), func() { fmt.Println("frames:", served) }); err != nil {
		fmt.Println(err)
	}
	fmt.Println(loop.Close(), errors.Is(loop.Err(), endpoint.ErrClosed))
	// Output:
	// hello <nil>
	// frames: 1
	// <nil> true
}

// SPDX-License-Identifier: Apache-2.0

package ring_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"sync"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/ring"
	"github.com/libra-ina/libra/wire"
)

// Three workers add vectors of four values, over UDP sockets on the loopback interface. The codec
// cuts values to multiples of 2^-12 here, and the cut waits for the next operation.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	var links []link.Link
	var workers []wire.Endpoint
	for range 3 {
		l, err := link.OpenUDP(netip.MustParseAddrPort("127.0.0.1:0"))
		check(err)
		links, workers = append(links, l), append(workers, l.Local())
	}
	var all sync.WaitGroup
	for place, l := range links {
		all.Go(func() {
			r, err := ring.New(context.Background(), ring.Config{
				Link: l, Workers: workers, Place: place, Job: 1, Epoch: 1, Values: 4, Codec: codec.Config{Bound: 10},
			})
			check(err)
			gradients := []float32{0.5, float32(place), 0, 0.001}
			check(r.Reduce(gradients))
			if place == 0 {
				fmt.Println(gradients[:3])
			}
			check(r.Close())
		})
	}
	all.Wait()
	// Output: [1.5 3 0]
}

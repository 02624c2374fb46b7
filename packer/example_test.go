// SPDX-License-Identifier: Apache-2.0

package packer_test

import (
	"fmt"
	"log"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// Three rows of two gradients go into frames, as an endpoint fills them: rows 7 and
// 9 are hot, row 8 is not.
func Example() {
	hot, err := packer.NewHotSet(2, []uint64{7, 9}, nil, packer.Meta{})
	if err != nil {
		log.Fatal(err)
	}
	p, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Dense})
	if err != nil {
		log.Fatal(err)
	}
	if err := p.Begin([]uint64{7, 8, 9}, []float32{1, 2, 3, 4, 5, 6}); err != nil {
		log.Fatal(err)
	}
	buffer := make([]byte, wire.MaxPayload) // an endpoint's next free transmit buffer
	for kind := p.Next(); kind != 0; kind = p.Next() {
		payload, err := p.Fill(buffer)
		if err != nil {
			log.Fatal(err)
		}
		wire.Header{Type: kind}.Put(payload) // and job, sender, epoch, number
		fmt.Printf("%v frame of %d bytes\n", kind, len(payload))
	}
	fmt.Printf("%+v\n", p.Sent())
	// Output:
	// HOT frame of 148 bytes
	// COLD frame of 32 bytes
	// {HotPairs:4 HotStripes:1 HotFrames:1 ColdRows:1 ColdFrames:1}
}

// Counted updates become a hot set: rows are added while each raises their share of
// all updates by at least a quarter.
func ExamplePrinciple() {
	var counter packer.Exact
	for _, key := range []uint64{5, 3, 5, 8, 5, 3, 5, 9} {
		counter.Add(key)
	}
	hot, err := packer.Principle{Step: 1, MinGain: 0.25}.HotSet(counter.Ranking(), 1, packer.Meta{})
	if err != nil {
		log.Fatal(err)
	}
	for rank := range uint32(hot.Len()) {
		fmt.Printf("rank %d: row %d, %d updates\n", rank, hot.Key(rank), hot.Count(rank))
	}
	// Output:
	// rank 0: row 5, 4 updates
	// rank 1: row 3, 2 updates
}

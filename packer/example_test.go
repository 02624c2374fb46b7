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
	// {HotPairs:4 HotStripes:1 HotFrames:1 ColdRows:1 ColdFrames:1 CodedValues:0 CodedBytes:0}
}

// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"log"

	"github.com/libra-ina/libra/packer/placement"
)

// Six gradients go to a switch with four registers, in packets of three. Ranks 0, 4 and 8 are in
// one register, so they are sent in separate packets, and no packet recirculates.
func Example() {
	var batch []placement.Gradient
	for _, rank := range []uint32{0, 1, 4, 8, 2, 3} {
		batch = append(batch, placement.Gradient{Rank: rank, Value: 0.5})
	}
	registers := placement.Heat(4)
	o, err := placement.NewOrchestrator(registers.Registers(), 3)
	if err != nil {
		log.Fatal(err)
	}
	seen := make([]uint32, registers.Registers())
	packets := o.Package(batch)
	for i := range packets.Len() {
		for _, g := range packets.At(i) {
			fmt.Print("rank ", g.Rank, ", ")
		}
		fmt.Println("recirculations:", placement.Recirculations(packets.At(i), registers, seen))
	}
	fmt.Println("all in one packet:", placement.Recirculations(batch, registers, seen))
	// Output:
	// rank 0, rank 1, rank 2, recirculations: 0
	// rank 4, rank 3, recirculations: 0
	// rank 8, recirculations: 0
	// all in one packet: 2
}

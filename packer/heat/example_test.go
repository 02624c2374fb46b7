// SPDX-License-Identifier: Apache-2.0

package heat_test

import (
	"fmt"
	"log"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
)

// Counted updates become a hot set: rows are added while each raises their share of
// all updates by at least a quarter.
func Example() {
	var counter heat.Exact
	for _, key := range []uint64{5, 3, 5, 8, 5, 3, 5, 9} {
		counter.Add(key)
	}
	hot, err := heat.Principle{Step: 1, MinGain: 0.25}.HotSet(counter.Ranking(), 1, packer.Meta{})
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

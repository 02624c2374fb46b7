// SPDX-License-Identifier: Apache-2.0

package share_test

import (
	"fmt"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// The sums of two shares of three rows come back as ranks of the hot set.
func Example() {
	hot, err := packer.NewHotSet(2, []uint64{70, 80, 90}, nil, packer.Meta{})
	if err != nil {
		panic(err)
	}
	shares, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), 2)
	if err != nil {
		panic(err)
	}
	for i := range shares.Len() {
		for local := range uint32(shares.Slots(i)) {
			rank, _ := shares.Rank(i, local)
			fmt.Printf("share %d, local rank %d: scalar %d of key %d\n", i, local, rank%2, hot.Key(rank/2))
		}
	}
	// Output:
	// share 0, local rank 0: scalar 0 of key 70
	// share 0, local rank 1: scalar 1 of key 70
	// share 0, local rank 2: scalar 0 of key 90
	// share 0, local rank 3: scalar 1 of key 90
	// share 1, local rank 0: scalar 0 of key 80
	// share 1, local rank 1: scalar 1 of key 80
}

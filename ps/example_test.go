// SPDX-License-Identifier: Apache-2.0

package ps_test

import (
	"errors"
	"fmt"
	"math"

	"github.com/libra-ina/libra/ps"
)

// Two workers push gradients of the same row in one step.
func Example() {
	store, err := ps.New(ps.Config{
		Dim: 2, Exp: ps.DefaultExp, Optimizer: ps.Optimizer{Method: ps.SGD, LearningRate: 0.5},
		Init: ps.Init{Scale: 0.01, Seed: 1},
	})
	if err != nil {
		panic(err)
	}
	var before, after [2]float32
	store.Read([]uint64{1234}, before[:])
	for range 2 {
		if err := store.Push([]uint64{1234}, []float32{0.25, -1}); err != nil {
			panic(err)
		}
	}
	fmt.Println("rows of the step:", store.Commit())
	store.Read([]uint64{1234}, after[:])
	fmt.Printf("%.2f %.2f\n", after[0]-before[0], after[1]-before[1])

	err = store.AddSum(1234, 0, math.MaxInt64) // once more than that is too much
	fmt.Println(errors.Is(errors.Join(err, store.AddSum(1234, 0, 1)), ps.ErrOverflow))
	// Output:
	// rows of the step: 1
	// -0.25 1.00
	// true
}

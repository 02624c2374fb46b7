// SPDX-License-Identifier: Apache-2.0

package lut_test

import (
	"fmt"
	"math"

	"github.com/libra-ina/libra/lut"
)

// Two numbers are added with tables, and the error is within the bound.
func Example() {
	adder, err := lut.New(lut.Config{})
	if err != nil {
		panic(err)
	}
	x, y := float32(1.7), float32(0.3)
	sum := math.Float32frombits(adder.Add(math.Float32bits(x), math.Float32bits(y)))
	fmt.Printf("%.4f\n", sum)
	truth := float64(x) + float64(y)
	fmt.Println(math.Abs(float64(sum)-truth)/truth <= adder.Bound().SameSigns)
	// Output:
	// 2.0000
	// true
}

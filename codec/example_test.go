// SPDX-License-Identifier: Apache-2.0

package codec_test

import (
	"fmt"
	"math"

	"github.com/libra-ina/libra/codec"
)

// Gradients are coded with an error below a thousandth of twice the largest.
func Example() {
	gradients := []float32{0.003, -0.02, 0, 0.00001, 0.011, 0, 0, 0, 0, 0}
	c, err := codec.New(codec.Config{Bound: 10, Scale: codec.Fit(gradients)})
	if err != nil {
		panic(err)
	}
	coded := c.Append(nil, gradients)
	decoded := make([]float32, len(gradients)) // who decodes knows how many, and the configuration
	if err := c.Decode(decoded, coded); err != nil {
		panic(err)
	}
	worst := 0.0
	for i := range gradients {
		worst = max(worst, math.Abs(float64(gradients[i]-decoded[i])))
	}
	fmt.Printf("%d bytes instead of %d, scale 2^%d\n", len(coded), 4*len(gradients), c.Config().Scale)
	fmt.Println(worst < math.Ldexp(1, -10-c.Config().Scale))
	fmt.Println(c.Decode(decoded, coded[:4]))
	// Output:
	// 9 bytes instead of 40, scale 2^5
	// true
	// codec: malformed at byte 3, value 0: the codes end too early; decode the bytes of one encoding, all of them, with its number of values
}

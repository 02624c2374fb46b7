// SPDX-License-Identifier: Apache-2.0

package telemetry

import "fmt"

// DefaultSample is the sample of endpoints that are not told otherwise.
const DefaultSample = 64

// maxSample leaves at least one drawn frame in 65,536.
const maxSample = 1 << 16

// CheckSample refuses a sample that is neither a power of two nor 0.
func CheckSample(sample int) error {
	if sample < 0 || sample > maxSample || sample&(sample-1) != 0 {
		return fmt.Errorf("%d is neither 0 nor a power of two up to %d", sample, maxSample)
	}
	return nil
}

// Draw selects one of a number of frames by their sequence numbers. The zero value selects none.
type Draw struct {
	below uint64
}

// golden is 2^32 divided by the golden ratio. Multiples of it, modulo 2^32, are spread evenly, and
// have no period that a sender's own pattern of frames could share, as multiples of 64 have.
const golden = 0x9E3779B1

// NewDraw returns a draw of one frame of sample, which [CheckSample] accepts: 0 selects none, 1
// all.
func NewDraw(sample int) Draw {
	if sample == 0 {
		return Draw{}
	}
	return Draw{below: 1 << 32 / uint64(sample)}
}

// Below returns the limit of the product of a drawn number and 0x9E3779B1, modulo 2^32: what a
// program in another language compares with.
func (d Draw) Below() uint64 { return d.below }

// Draws reports whether a number is drawn.
func (d Draw) Draws(number uint32) bool { return uint64(number*golden) < d.below }

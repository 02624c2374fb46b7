// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"math/rand/v2"
	"testing"
)

// TestDecodesAllWithVectors looks for valid codes of which some are left to the plain decoder,
// which is right but slow, and for malformed ones of which vectorised code claims to have decoded
// all.
func TestDecodesAllWithVectors(t *testing.T) {
	if !hasAVX2 {
		t.Skip("the processor has no AVX2")
	}
	r := rand.New(rand.NewPCG(2, 2))
	for i := range 3000 {
		n := r.IntN(400)
		values := widelySpread(r, n)
		if i%2 == 0 {
			values = gradients(uint64(i), n, r.Float64(), 0.02)
		}
		c := made(t, Config{Bound: 1 + r.IntN(14)})
		coded := c.Plain().Append(nil, values)
		if v, read := c.decodeAVX2(values, coded); v != n || read != len(coded) {
			t.Fatalf("%d of %d values, %d of %d bytes are decoded", v, n, read, len(coded))
		}
		if len(coded) == 0 {
			continue
		}
		coded[r.IntN(len(coded))] ^= 1 << r.IntN(8)
		whole := c.decodePlain(values, 0, coded, 0) == nil
		if v, read := c.decodeAVX2(values, coded); whole != (v == n && read == len(coded)) || v%Group != 0 && !whole && v != n {
			t.Fatalf("plain %v; %d of %d values, %d of %d bytes are decoded", whole, v, n, read, len(coded))
		}
	}
}

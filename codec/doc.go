// SPDX-License-Identifier: Apache-2.0

// Package codec shortens float32 gradients to 0, 1, 2 or 4 bytes, within an absolute bound of the
// error. It is the lossy compression of INCEPTIONN (Li et al., "A Network-Centric
// Hardware/Algorithm Co-Design to Accelerate Distributed Training of Deep Neural Networks", MICRO
// 2018; §V, Algorithms 2 and 3) with what the paper leaves out: a bound that holds for each value,
// a scale, values that are no multiple of eight, and a byte for each 64 values that leaves bursts
// of zeros out.
//
// With bound E from 1 to 14, T = E/2 rounded down, scale k from -126 to 126, and m = |f|·2^k, a
// value f becomes
//
//	if            tag  code                          decodes to
//	not m < 1     3    the 4 bytes of f, unscaled    itself; infinities and NaN too
//	m >= 2^-T     2    sign, 15 bits of m·2^15       ±code·2^-(15+k)
//	m >= 2^-E     1    sign, 7 bits of m·2^(7+T)     ±code·2^-(7+T+k)
//	else          0    none                          +0
//
// Magnitudes are cut, not rounded, so no value grows, and the error is below 2^-(E+k). Values that
// were coded and decoded are coded and decoded again without a change.
//
// A group is 64 values, or what is left. It starts with a byte of marks: bit 7-i says that burst i,
// of 8 values, is not all tag 0. Then come those bursts: 16 bits of tags, those of the first value
// on top, then the codes in order, all big-endian. The values that a last burst lacks have tag 0.
// So encodings of multiples of 64 values can be joined. docs/codec.md says when to use it, and what
// is wrong in the paper.
//
// testdata/vectors.json has values, codes and malformed codes, to test other implementations. On
// amd64 with AVX2 both directions are vectorised, with the same bytes and bits.
//
// # Units, errors, goroutines
//
// Values have the caller's unit; bounds and scales are exponents of two. [New] returns an error
// that wraps [ErrConfig], [Codec.Decode] a [MalformedError] for bytes that are not the codes of as
// many values; it takes longer codes than [Codec.Append] writes, such as a zero of two bytes. The
// caller owns all slices, and nothing keeps them. A [Codec] is a small immutable value without
// memory of its own, does not allocate, and is safe for concurrent use.
package codec

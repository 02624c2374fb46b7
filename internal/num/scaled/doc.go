// SPDX-License-Identifier: Apache-2.0

// Package scaled is the aggregator's "fixed" arithmetic: SwitchML's int32 fixed point with a scale
// that the workers negotiate for each iteration (Sapio et al., NSDI 2021; the baseline of the
// paper's §5.5).
//
// Before an iteration, each worker reports the exponent of its largest gradient ([LargestExponent])
// with a SCALE frame. The aggregator sends the largest of these to all, and each computes from it
// the largest scale at which the sum of all workers cannot overflow ([ScaleFor]). Workers convert
// with it ([Scale.FromBits]), sums saturate ([Add]), and their readers convert back
// ([Scale.ToFloat32]).
//
// SwitchML's scale is (2^31 - n) / (n B) for n workers and a bound B. This package uses the next
// lower power of two: only exponents are negotiated, a multiplication is a shift, and the only
// rounding is the one to an integer.
package scaled

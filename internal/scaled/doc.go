// SPDX-License-Identifier: Apache-2.0

// Package scaled is the aggregator's "fixed" arithmetic: SwitchML's int32 fixed
// point with a scale that the workers negotiate for each iteration (Sapio et
// al., NSDI 2021; the baseline of the paper's §5.5).
//
// Before an iteration, each worker reports the exponent of its largest gradient
// ([LargestExponent]) with a SCALE frame. The aggregator answers all of them with
// the largest of these, from which each computes the largest scale at which the sum
// of all workers cannot overflow ([ScaleFor]). Workers convert with it
// ([Scale.FromBits]), sums saturate ([Add]), and their readers convert back
// ([Scale.ToFloat32]).
//
// SwitchML's scale is (2^31 - n) / (n B) for n workers and a bound B. Ours is the
// power of two below: exponents are all that has to be negotiated, a multiplication
// is a shift, and the only rounding is that to an integer.
package scaled

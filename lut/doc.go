// SPDX-License-Identifier: Apache-2.0

// Package lut adds float32 numbers with integer operations and table lookups only,
// as a data plane without a floating-point unit can. It implements the on-the-fly
// summation of the paper (Pan et al., "Libra: In-network Gradient Aggregation for
// Speeding up Distributed Sparse Deep Training", 2022; §3.5, equation 1 and Figure
// 9), bit by bit.
//
// The sum of two numbers x >= y > 0 with i = log2 x and j = log2 y is
//
//	x + y = 2^(i + σ(θ)),  σ(θ) = log2(1 + 2^θ),  θ = j - i <= 0.
//
// The paper's seven tables give the logarithms (epoTable; logTables of m, Δm
// and m ln 2; expTable), σ (miTable) and the power of two (the final expTable).
//
// The package adds what the paper leaves out:
//
//   - Numbers of opposite signs. If their exponents differ by two or more,
//     x - y = 2^(i + log2(1 - 2^θ)) with one more table (subTable). Otherwise the
//     sum may cancel, and tables of logarithms are too imprecise: an error ε of θ
//     causes an error ε/|θ| of the sum. But then the difference of the
//     significands fits an integer, so it is computed exactly and normalised with
//     a table of 25 prefixes (normTable).
//   - Small addends. A number whose σ is below the resolution of the tables
//     leaves all 24 bits of the larger one unchanged.
//   - Zeros and subnormals. A subnormal operand counts as zero, and a sum below
//     2^-126 is zero. A zero sum is always +0.
//   - Overflow. A computed sum of 2^128 and more is an infinity of its sign. A
//     data plane refuses such a sum instead of storing it.
//   - Infinities and NaN, which a data plane refuses too: as in IEEE 754, with
//     one NaN, 0x7fc00000.
//
// The run-time code is in add.go and meant to be ported; an [Adder] exports its
// tables as byte images for BPF maps and as entries for a P4 control plane.
// testdata holds sums to test a port. Tables are computed with integer arithmetic
// and have the same bits on every machine.
//
// # Units, errors, goroutines
//
// Numbers are passed as the bits of a float32 ([math.Float32bits]); bounds are relative
// to the true sum. [New] returns an error that wraps [ErrConfig]; [Adder.Add] is defined
// for all bits and has no errors. An [Adder] owns its tables, is immutable, does not
// allocate in an addition, and is safe for concurrent use.
package lut

// SPDX-License-Identifier: Apache-2.0

// Package lut adds float32 numbers with integer operations and table lookups
// only, as a data plane without a floating-point unit can: the on-the-fly
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
// What the paper leaves out, and what this package does about it:
//
//   - Numbers of opposite signs. Where their exponents differ by two or more,
//     x - y = 2^(i + log2(1 - 2^θ)) with one more table (subTable). Where they
//     do not, the sum may cancel, and no table of logarithms can be right: an
//     error ε of θ makes an error ε/|θ| of the sum. But then the difference of
//     the significands fits an integer, so it is taken as an integer, exactly,
//     and normalised with a table of 25 prefixes (normTable).
//   - Small addends. A number whose σ is below the resolution of the tables
//     leaves the larger one as it is, all 24 bits of it.
//   - Zeros and subnormals. A subnormal operand counts as zero, and a sum below
//     2^-126 is zero. A zero sum is always +0.
//   - Overflow. A sum of 2^128 and more, as computed, is an infinity of its
//     sign. A data plane refuses such a sum instead of storing it.
//   - Infinities and NaN, which a data plane refuses too: as in IEEE 754, with
//     one NaN, 0x7fc00000.
//
// The run-time code is in add.go and meant to be ported; tables come from an
// [Adder] as byte images for BPF maps and as entries for a P4 control plane.
// testdata holds sums for a port to compare with. Tables are made with integer
// arithmetic and have the same bits on every machine.
//
// # Units, errors, goroutines
//
// Numbers pass as the bits of a float32 ([math.Float32bits]), bounds as a part of the
// true sum. [New] returns an error that wraps [ErrConfig]; [Adder.Add] has none, as it is
// defined for all bits. An [Adder] does not change after New, takes no memory for an
// addition, and may be used by several goroutines.
package lut

// SPDX-License-Identifier: Apache-2.0

// Package portable has functions of floating-point numbers whose results are the same bits on all
// architectures. Those of package math are not: some are assembly, others are compiled to fused
// multiply-adds if the processor has them. Here, conversions prevent those (Go specification,
// "Floating-point operators").
package portable

import "math"

const ln2Hi, ln2Lo = 6.93147180369123816490e-01, 1.90821492927058770002e-10

// Exp returns e^x with a relative error below 1e-15; 0 if that would be below 1e-304, and +Inf if
// it would be above 1e304.
func Exp(x float64) float64 {
	switch {
	case math.IsNaN(x):
		return x
	case x <= -700:
		return 0
	case x >= 700:
		return math.Inf(1)
	}
	// x = k ln 2 + r, |r| <= ln 2 / 2; ln2Hi has 21 trailing zero bits, so that
	// its product with k is exact (fdlibm e_exp.c).
	k := math.Floor(float64(x*math.Log2E) + 0.5)
	r := x - float64(k*ln2Hi) - float64(k*ln2Lo)
	sum := 1.0
	for n := 13.0; n >= 1; n-- { // Taylor series, Horner's scheme
		sum = 1 + float64(float64(r/n)*sum)
	}
	return float64(sum * math.Float64frombits(uint64(1023+int64(k))<<52))
}

// Log returns the natural logarithm of a finite x > 0, with an error below 1e-15 times the larger
// of 1 and the result; NaN for any other x.
func Log(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return math.NaN()
	}
	m, exponent := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, exponent = 2*m, exponent-1
	}
	// ln m = 2 artanh s = 2 (s + s³/3 + s⁵/5 + ...), |s| < 0.172.
	s := (m - 1) / (m + 1)
	square, sum := float64(s*s), 0.0
	for n := 23.0; n >= 1; n -= 2 {
		sum = 1/n + float64(square*sum)
	}
	k := float64(exponent)
	return float64(k*ln2Hi) + (float64(k*ln2Lo) + float64(2*s*sum))
}

// Pow returns x^y for a finite x > 0, with a relative error below 1e-15 times the larger of 1 and
// |y ln x|.
func Pow(x, y float64) float64 { return Exp(float64(y * Log(x))) }

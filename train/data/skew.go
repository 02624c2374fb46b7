// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"math"
	"sort"
	"sync"

	"github.com/libra-ina/libra/internal/num/portable"
)

// zipfMandelbrot is the distribution of a rank r = 1..n with a probability
// proportional to (r+q)^-s.
type zipfMandelbrot struct {
	s, q float64
	n    int
}

// mass returns the sum of (r+q)^-s over the first k ranks.
func (z zipfMandelbrot) mass(k int) float64 {
	// The first ranks one by one, the others by the Euler–Maclaurin formula,
	// whose error is below the third derivative at rank head.
	const head = 1000
	f := func(r float64) float64 { return portable.Pow(r+z.q, -z.s) }
	var sum float64
	for r := 1; r <= min(k, head); r++ {
		sum += f(float64(r))
	}
	if k <= head {
		return sum
	}
	a, b := head+z.q, float64(k)+z.q
	integral := portable.Log(b / a)
	if z.s != 1 {
		integral = (portable.Pow(b, 1-z.s) - portable.Pow(a, 1-z.s)) / (1 - z.s)
	}
	slope := float64(-z.s * (portable.Pow(b, -z.s-1) - portable.Pow(a, -z.s-1)))
	return sum + integral + float64((f(float64(k))-f(head))/2) + slope/12
}

// share returns the probability of the first k ranks.
func (z zipfMandelbrot) share(k int) float64 { return z.mass(k) / z.mass(z.n) }

// fitSkew returns the distribution over n ranks whose first hot ranks have the
// given share together. For a fixed offset q the share grows with s, so bisection
// finds s.
func fitSkew(n, hot int, q, share float64) (zipfMandelbrot, error) {
	const limit = 8
	if n < 2 || hot < 1 || hot >= n || q < 0 {
		return zipfMandelbrot{}, fmt.Errorf("data: %d hot of %d parameters with offset %g make no skew", hot, n, q)
	}
	lo, hi := zipfMandelbrot{0, q, n}, zipfMandelbrot{limit, q, n}
	if !(share >= lo.share(hot)) || !(share <= hi.share(hot)) {
		return zipfMandelbrot{},
			fmt.Errorf("data: the top %d of %d parameters cannot have a share of %g of the updates; from %.3g to %.3g is possible",
				hot, n, share, lo.share(hot), hi.share(hot))
	}
	// The interval is halved until s has no more digits.
	for range 60 {
		mid := zipfMandelbrot{(lo.s + hi.s) / 2, q, n}
		if mid.share(hot) < share {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi, nil
}

// cumulative returns the distribution function at ranks 1..n.
func (z zipfMandelbrot) cumulative() []float64 {
	c := make([]float64, z.n)
	var sum float64
	for i := range c {
		sum += portable.Pow(float64(i+1)+z.q, -z.s)
		c[i] = sum
	}
	for i := range c {
		c[i] /= sum
	}
	return c
}

// lastSkew is the last distribution: a process that opens several sources opens them for one
// training, and a fit takes milliseconds.
var lastSkew fittedSkew

type fittedSkew struct {
	mu         sync.Mutex
	n, hot     int
	q, share   float64
	cumulative []float64 // never written again
}

// fit returns the distribution function of [fitSkew]'s result.
func (f *fittedSkew) fit(n, hot int, q, share float64) ([]float64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cumulative == nil || f.n != n || f.hot != hot || f.q != q || f.share != share {
		z, err := fitSkew(n, hot, q, share)
		if err != nil {
			return nil, err
		}
		f.n, f.hot, f.q, f.share, f.cumulative = n, hot, q, share, z.cumulative()
	}
	return f.cumulative, nil
}

// draw maps u, uniform in [0, 1), to a rank counted from 0.
func draw(cumulative []float64, u float64) int {
	return min(sort.SearchFloat64s(cumulative, math.Nextafter(u, 1)), len(cumulative)-1)
}

package aggregator

import (
	"fmt"

	"github.com/dustin/go-humanize"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Targets of combine mode, in nanoseconds.
const (
	exactPair   = 4   // of a frame of 10 stripes
	lutPair     = 25  // likewise
	exactFrame  = 200 // of one stripe
	fixedFactor = 1   // of exact's time
)

// judge compares the results with what the XDP program has to reach.
func (r *Report) judge() {
	want := func(hot int, what string, want, got float64) {
		what = fmt.Sprintf("combine, %s hot: %s", humanize.Comma(int64(hot)), what)
		r.Targets = append(r.Targets, Target{What: what, Want: want, Got: got, Met: got <= want})
	}
	for _, hot := range r.hotCounts() {
		longest := func(a plane.Arithmetic) *Result { return r.find(a, plane.Combine, wire.MaxStripes, hot) }
		exact, lut, fixed := longest(plane.Exact), longest(plane.LUT), longest(plane.Fixed)
		if exact != nil {
			want(hot, "exact, 10 stripes, ns a pair", exactPair, exact.NsPerPair)
		}
		if one := r.find(plane.Exact, plane.Combine, 1, hot); one != nil {
			want(hot, "exact, 1 stripe, ns a frame", exactFrame, one.NsPerFrame)
		}
		if exact != nil && fixed != nil {
			want(hot, "fixed, 10 stripes, time divided by that of exact", fixedFactor, paired(fixed.Samples, exact.Samples))
		}
		if lut != nil {
			want(hot, "lut, 10 stripes, ns a pair", lutPair, lut.NsPerPair)
		}
	}
}

// hotCounts returns the numbers of hot parameters in the order of the results.
func (r *Report) hotCounts() []int {
	return distinct(r.Results, func(res Result) int { return res.Hot })
}

package arithmetic

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/dustin/go-humanize"

	"github.com/libra-ina/libra/bench/harness"
)

// tolerable is the error of a sum up to which the advice calls it harmless: a
// tenth of a percent, which is the paper's own error of one addition.
const tolerable = 1e-3

// advice puts the figures into words, in one paragraph.
func (r *Report) advice() string {
	last := r.LongSums[len(r.LongSums)-1].Additions
	longest := humanize.Comma(int64(last))
	growing := r.DataSets[len(r.DataSets)-1].Name
	lut, fixed := r.table2(LUT), r.table2(Fixed)

	exactly := fmt.Sprintf("Choose exact wherever the data plane adds 64-bit integers, as XDP and the Go model do: "+
		"after %s additions its largest error is %.1e (float32: %.1e), the sum does not depend on the order of arrival, "+
		"and nothing is negotiated; it takes 8 bytes a slot instead of 4.",
		longest, r.largest(Exact, last), r.largest(Float32, last))

	looked := fmt.Sprintf("Choose lut on a switch without floats whose workers are asynchronous or whose gradients span many magnitudes. "+
		"One addition is precise to %s on average for gradients and %s for uniform numbers, and none is off by more than %.1e, "+
		"cancelling ones included. But what additions lose adds up, and addends below 2^-16 of the sum are lost altogether: "+
		"a sum of %s numbers of one sign has an error of %s. %s",
		percent(lut[0].Average, 4), percent(lut[1].Average, 4), max(r.Bound.SameSigns, r.Bound.OppositeSigns),
		longest, percent(r.median(LUT, growing, last), 1), r.harvest())

	negotiated := fmt.Sprintf("Choose fixed where 32-bit slots must do and workers are synchronous anyway. "+
		"One addition is precise to %s on average for gradients and %s for uniform numbers, but only because the scale is negotiated for these very numbers in every iteration; "+
		"with the scale of other numbers, %s is left. "+
		"All addends share 31 bits: a sum of %s leaves each of them %d, "+
		"and a gradient far below the largest one of its iteration loses its digits (the worst pair of gradients is precise to %s). "+
		"The median error of a sum of %s gradients is %.1e (lut: %.1e).",
		percent(fixed[0].Average, 5), percent(fixed[1].Average, 5), percent(r.Foreign.Average, 1),
		longest, 31-bits.Len(uint(last-1)), percent(fixed[0].Worst, 2),
		longest, r.median(Fixed, r.DataSets[0].Name, last), r.median(LUT, r.DataSets[0].Name, last))

	return exactly + " " + looked + " " + negotiated
}

// harvest tells how long a sum of lut may become.
func (r *Report) harvest() string {
	shortest := math.MaxInt // of the lengths that do harm
	for _, s := range r.LongSums {
		if s.Arithmetic == LUT && s.Median > tolerable {
			shortest = min(shortest, s.Additions)
		}
	}
	harmless := 0
	for _, s := range r.LongSums {
		if s.Additions < shortest {
			harmless = max(harmless, s.Additions)
		}
	}
	limit := percent(tolerable, 1)
	if harmless == 0 {
		return fmt.Sprintf("Median errors exceed %s from %s additions on, so harvest after fewer.", limit, humanize.Comma(int64(shortest)))
	}
	return fmt.Sprintf("Median errors stay within %s up to %s additions, so harvest at least as often.", limit, humanize.Comma(int64(harmless)))
}

// table2 returns an arithmetic's rows, gradients first.
func (r *Report) table2(a Arithmetic) (rows []Precision) {
	for _, p := range r.Precision {
		if p.Arithmetic == a {
			rows = append(rows, p)
		}
	}
	return rows
}

// largest returns the largest error of sums of that length, of any data set.
func (r *Report) largest(a Arithmetic, additions int) (largest float64) {
	for _, s := range r.LongSums {
		if s.Arithmetic == a && s.Additions == additions {
			largest = max(largest, s.Largest)
		}
	}
	return largest
}

func (r *Report) median(a Arithmetic, dataSet string, additions int) float64 {
	return harness.Find(r.LongSums, func(s LongSum) bool {
		return s.Arithmetic == a && s.DataSet == dataSet && s.Additions == additions
	}).Median
}

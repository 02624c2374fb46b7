// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/train/data"
)

// HotSetOptions configure how the hot rows of a training set are found (the paper's §3.3).
type HotSetOptions struct {
	// Rate is the share of the rows to sample; 0 means DefaultRate, or 1 if that gives fewer than
	// EnoughRows, or fewer keys than Rows, or if Auto takes keys that are in the sample only once.
	Rate float64
	// Seed selects the rows.
	Seed uint64
	// Dim is the number of scalars of a parameter row.
	Dim int
	// NoBias leaves out the key of the intercept: rows of programs have none.
	NoBias bool
	// Counters bounds the memory: the Space-Saving sketch counts that many keys. 0 counts every key
	// exactly.
	Counters int
	// Rows, if not 0, is the number of hot rows, and Principle is ignored. There are at most
	// packer.MaxHotRows, and as many as keys were counted.
	Rows int
	// AtMost lets a sample suffice that has fewer keys than Rows.
	AtMost bool
	// Auto, if Rows is 0, decides how many rows are hot by what they cost, and Principle is ignored.
	// Expected, if not nil, gets what it expects.
	Auto     *heat.Auto
	Expected *heat.Expected
	// Principle decides how many rows are hot.
	Principle heat.Principle
	// Switches is the number of switches among which a plan divides the rows, each with room for
	// packer.PageSlots scalars by Principle, and a chip of its own. 0 means 1.
	Switches int
}

// Slots is the number of scalars for which there is room by Principle. An aggregator in XDP has
// more, for those who set Rows.
func (o HotSetOptions) Slots() int { return max(1, o.Switches) * packer.PageSlots }

// suffices reports whether a sample had what was asked for.
func (o HotSetOptions) suffices(hot *packer.HotSet) bool {
	switch n := hot.Len(); {
	case n == 0:
		return false
	case o.AtMost:
		return true
	case o.Rows > 0:
		most := min(o.Rows, packer.MaxHotRows(o.Dim))
		if o.Counters > 0 {
			most = min(most, o.Counters)
		}
		return n >= most
	case o.Auto != nil:
		// What is in a sample once is as rare as what the sample lacks, of which Auto knows nothing.
		return hot.Count(uint32(n-1)) > 1
	}
	return true
}

// BuildHotSet finds the hot rows of a training set. It reads src once, or twice if a sample of it
// would be too small.
func BuildHotSet(src data.Source, o HotSetOptions) (*packer.HotSet, error) {
	if o.Rate == 0 {
		o.Rate = DefaultRate
		hot, sampled, err := sampleHotSet(src, o)
		if err != nil || sampled >= EnoughRows && o.suffices(hot) {
			return hot, err
		}
		o.Rate = 1
	}
	hot, sampled, err := sampleHotSet(src, o)
	switch {
	case err != nil:
	case sampled == 0 && src.Rows() == 0:
		return nil, errors.New("hot set: there are no rows: give a file that has some; of the pushes of a ps-lite program the van writes those that it could split (docs/pslite.md)")
	case sampled == 0:
		return nil, fmt.Errorf("hot set: none of the %d rows was sampled at rate %g: raise the rate", src.Rows(), o.Rate)
	case hot.Len() == 0:
		return nil, fmt.Errorf("hot set: none of %d sampled rows has a key: give rows with keys, as in 1 3:1 7:1", sampled)
	}
	return hot, err
}

// The defaults of [HotSetOptions.Rate]: DefaultRate finds 90 % of the hot parameters in the paper.
const (
	DefaultRate = 0.08
	EnoughRows  = 20
)

// sampleHotSet also returns how many rows it sampled. If there are none at a rate below 1, there is
// no hot set.
func sampleHotSet(src data.Source, o HotSetOptions) (hot *packer.HotSet, sampled uint64, err error) {
	sampler, err := heat.NewSampler(o.Rate, o.Seed)
	if err != nil {
		return nil, sampled, err
	}
	var counter heat.Counter = &heat.Exact{}
	if o.Counters != 0 {
		if counter, err = heat.NewSpaceSaving(o.Counters); err != nil {
			return nil, sampled, err
		}
	}
	for keys, err := range data.SampledKeys(src, sampler.Rate(), o.Seed) {
		if err != nil {
			return nil, sampled, err
		}
		sampled++
		for _, key := range keys {
			if key != data.BiasKey || !o.NoBias {
				counter.Add(key)
			}
		}
	}
	if sampled == 0 {
		return nil, 0, nil
	}
	meta := packer.Meta{Rate: o.Rate, Seed: o.Seed, Rows: sampled}
	switch {
	case o.Rows > 0:
		hot, err = counter.Ranking().Top(min(o.Rows, packer.MaxHotRows(o.Dim)), o.Dim, meta)
	case o.Auto != nil:
		ranking := counter.Ranking()
		var expected heat.Expected
		if expected, err = o.Auto.Choose(ranking, o.Dim); err != nil {
			return nil, sampled, err
		}
		if o.Expected != nil {
			*o.Expected = expected
		}
		hot, err = ranking.Top(expected.Rows, o.Dim, meta)
	default:
		principle := o.Principle
		principle.MaxSlots = cmp.Or(principle.MaxSlots, o.Slots())
		principle.ChipBytes = cmp.Or(principle.ChipBytes, heat.DefaultChipBytes) * max(1, o.Switches)
		hot, err = principle.HotSet(counter.Ranking(), o.Dim, meta)
	}
	return hot, sampled, err
}

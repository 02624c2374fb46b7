package node

import (
	"cmp"
	"fmt"

	"github.com/libra-ina/libra/internal/workload"
	"github.com/libra-ina/libra/packer"
)

// HotSetOptions say how to find the hot rows of a training set (the paper's §3.3).
type HotSetOptions struct {
	// Rate is the share of the rows to look at; 0 means 0.08, which finds 90 %
	// of the hot parameters in the paper.
	Rate float64
	// Seed selects the rows.
	Seed uint64
	// Dim is the number of scalars of a parameter row.
	Dim int
	// Counters bounds the memory: that many keys are counted, by the
	// Space-Saving sketch. 0 counts every key exactly.
	Counters int
	// Rows, if not 0, is the number of hot rows, and Principle is ignored.
	Rows int
	// Principle decides how many rows are hot.
	Principle packer.Principle
}

// BuildHotSet finds the hot rows of a training set. It reads one pass of src.
func BuildHotSet(src workload.Source, o HotSetOptions) (*packer.HotSet, error) {
	o.Rate = cmp.Or(o.Rate, 0.08)
	sampler, err := packer.NewSampler(o.Rate, o.Seed)
	if err != nil {
		return nil, err
	}
	var counter packer.Counter = &packer.Exact{}
	if o.Counters != 0 {
		if counter, err = packer.NewSpaceSaving(o.Counters); err != nil {
			return nil, err
		}
	}
	var sampled uint64
	for keys, err := range workload.SampledKeys(src, sampler.Rate(), o.Seed) {
		if err != nil {
			return nil, err
		}
		sampled++
		for _, key := range keys {
			counter.Add(key)
		}
	}
	if sampled == 0 {
		return nil, fmt.Errorf("hot set: none of the %d rows was sampled at rate %g: raise the rate", src.Rows(), o.Rate)
	}
	meta := packer.Meta{Rate: o.Rate, Seed: o.Seed, Rows: sampled}
	if o.Rows > 0 {
		return counter.Ranking().Top(min(o.Rows, packer.MaxSlots/o.Dim), o.Dim, meta)
	}
	return o.Principle.HotSet(counter.Ranking(), o.Dim, meta)
}

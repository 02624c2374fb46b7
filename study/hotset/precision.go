// SPDX-License-Identifier: Apache-2.0

package hotset

import (
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
)

// Precision is |Hg ∩ Hs| / |Hg| (the paper's §5.3) on one log, for one step size
// of the trade-off rule: Hg is found in the whole log, Hs in a sample.
type Precision struct {
	Log  string `json:"log"`
	Step int    `json:"step"`
	// Hot is |Hg|. It is 0 if no step gains enough; Rates is empty then.
	Hot int `json:"hot"`
	// Share is the share of updates that Hg takes.
	Share float64 `json:"share"`
	// Least is how often the last parameter of Hg is updated in the whole
	// log. A sample at rate r shows it about r × Least times; far below 1, it
	// cannot be found by any method.
	Least uint64          `json:"least"`
	Rates []RatePrecision `json:"rates"`
}

// RatePrecision is the precision at one sampling rate, over several samples.
type RatePrecision struct {
	Rate   float64 `json:"rate"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// HotInSample is the median of |Hs|.
	HotInSample float64 `json:"hot_in_sample"`
}

// precision runs the experiment of the paper's §5.3 on one log.
func precision(l *trainingLog, c Config) ([]Precision, error) {
	type trial struct {
		rule         heat.Principle
		hot          *packer.HotSet // hot set of the whole log
		found, sizes []float64      // for the samples at one rate
	}
	results, trials := make([]Precision, len(c.Steps)), make([]trial, len(c.Steps))
	for i, step := range c.Steps {
		// The experiment is about the rule, so no budget may cap it.
		rule := heat.Principle{Step: step, MinGain: c.MinGain, MemoryShare: 1, ChipBytes: 1 << 30, MaxSlots: 1 << 30}
		hot, err := rule.HotSet(l.full, 1, packer.Meta{Rate: 1})
		if err != nil {
			return nil, err
		}
		trials[i] = trial{rule: rule, hot: hot}
		results[i] = Precision{Log: l.name, Step: step, Hot: hot.Len(), Share: hot.Meta().Share()}
		if hot.Len() > 0 {
			results[i].Least = hot.Count(uint32(hot.Len() - 1))
		}
	}
	for _, rate := range c.Rates {
		for sample := range c.Samples {
			s, err := heat.NewSampler(rate, c.Seed+uint64(sample))
			if err != nil {
				return nil, err
			}
			ranking := l.count(s.Keep)
			for i := range trials {
				t := &trials[i]
				if t.hot.Len() == 0 {
					continue
				}
				hot, err := t.rule.HotSet(ranking, 1, packer.Meta{Rate: rate})
				if err != nil {
					return nil, err
				}
				t.found, t.sizes = append(t.found, overlap(t.hot, hot)), append(t.sizes, float64(hot.Len()))
			}
		}
		for i := range trials {
			t := &trials[i]
			if t.hot.Len() > 0 {
				s := experiment.SpreadOf(t.found)
				results[i].Rates = append(results[i].Rates, RatePrecision{
					Rate: rate, Median: s.Median, Min: s.Min, Max: s.Max, HotInSample: experiment.Median(t.sizes),
				})
			}
			t.found, t.sizes = nil, nil
		}
	}
	return results, nil
}

// overlap returns |global ∩ sampled| / |global|.
func overlap(global, sampled *packer.HotSet) float64 {
	both := 0
	for rank := range uint32(global.Len()) {
		if _, ok := sampled.Rank(global.Key(rank)); ok {
			both++
		}
	}
	return float64(both) / float64(global.Len())
}

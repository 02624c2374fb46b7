package hotset

import (
	"github.com/libra-ina/libra/bench/harness"
	"github.com/libra-ina/libra/packer"
)

// Precision is |Hg ∩ Hs| / |Hg| (libra.txt §5.3) on one log, for one step size
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

// precision runs the experiment of libra.txt §5.3 on one log.
func precision(l *trainingLog, c Config) ([]Precision, error) {
	results := make([]Precision, len(c.Steps))
	rules := make([]packer.Principle, len(c.Steps))
	global := make([]*packer.HotSet, len(c.Steps))
	for i, step := range c.Steps {
		// The experiment is about the rule, so no budget may cap it.
		rules[i] = packer.Principle{Step: step, MinGain: c.MinGain, MemoryShare: 1, ChipBytes: 1 << 30, MaxSlots: packer.MaxHotKeys}
		hot, err := rules[i].HotSet(l.full, 1, packer.Meta{Rate: 1})
		if err != nil {
			return nil, err
		}
		global[i] = hot
		results[i] = Precision{Log: l.name, Step: step, Hot: hot.Len(), Share: hot.Meta().Share()}
		if hot.Len() > 0 {
			results[i].Least = hot.Count(uint32(hot.Len() - 1))
		}
	}
	for _, rate := range c.Rates {
		found := make([][]float64, len(c.Steps))
		sizes := make([][]float64, len(c.Steps))
		for sample := range c.Samples {
			s, err := packer.NewSampler(rate, c.Seed+uint64(sample))
			if err != nil {
				return nil, err
			}
			ranking := l.count(s.Keep)
			for i, rule := range rules {
				if global[i].Len() == 0 {
					continue
				}
				hot, err := rule.HotSet(ranking, 1, packer.Meta{Rate: rate})
				if err != nil {
					return nil, err
				}
				found[i] = append(found[i], overlap(global[i], hot))
				sizes[i] = append(sizes[i], float64(hot.Len()))
			}
		}
		for i := range c.Steps {
			if global[i].Len() == 0 {
				continue
			}
			s := harness.SpreadOf(found[i])
			results[i].Rates = append(results[i].Rates, RatePrecision{
				Rate: rate, Median: s.Median, Min: s.Min, Max: s.Max, HotInSample: harness.Median(sizes[i]),
			})
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

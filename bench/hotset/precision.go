package hotset

import (
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/libra-ina/libra/packer"
)

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
			slices.Sort(found[i])
			slices.Sort(sizes[i])
			results[i].Rates = append(results[i].Rates, RatePrecision{
				Rate:        rate,
				Median:      stat.Quantile(0.5, stat.Empirical, found[i], nil),
				Min:         found[i][0],
				Max:         found[i][len(found[i])-1],
				HotInSample: stat.Quantile(0.5, stat.Empirical, sizes[i], nil),
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

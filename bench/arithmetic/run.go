package arithmetic

import (
	"fmt"
	"math/rand/v2"

	"github.com/libra-ina/libra/lut"
)

// Run carries the study out. It returns [ErrConfig] for a bad configuration and
// the errors of an unreadable or malformed log.
func Run(c Config) (Report, error) {
	c, err := c.withDefaults()
	if err != nil {
		return Report{}, err
	}
	table, err := lut.New(lut.Config{})
	if err != nil {
		return Report{}, err
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	r1, err := gradients(c, rng)
	if err != nil {
		return Report{}, err
	}
	r2 := uniform("R2 uniform (-1, 1)", -1, c.Pairs, rng)
	// The paper has no data set of one sign, where sums grow fastest.
	growing := uniform("uniform (0, 1)", 0, c.Pairs, rng)

	r := Report{Trials: c.Trials, Senders: c.Senders, Tables: table.Budget(), Bound: table.Bound()}
	add := adders(table)
	for i, d := range []dataSet{r1, r2} {
		for _, a := range arithmetics {
			p, err := table2(d, a, add[a], 0)
			if err != nil {
				return Report{}, fmt.Errorf("arithmetic study: %s of %s: %w", a, d.name, err)
			}
			if paper, ok := paperTable2[a]; ok {
				p.Paper = &paper[i]
			}
			r.Precision = append(r.Precision, p)
		}
	}
	if r.Foreign, err = table2(r2, Fixed, add[Fixed], r1.medianBound()); err != nil {
		return Report{}, fmt.Errorf("arithmetic study: foreign scale: %w", err)
	}
	for _, d := range []dataSet{r1, r2, growing} {
		r.DataSets = append(r.DataSets, describe(d))
		long, err := longSums(d, c, table)
		if err != nil {
			return Report{}, err
		}
		r.LongSums = append(r.LongSums, long...)
	}
	r.Memory = memory(c, r.Tables)
	r.Advice = r.advice()
	return r, nil
}

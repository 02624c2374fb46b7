package arithmetic

import (
	"fmt"
	"math/rand/v2"

	"github.com/libra-ina/libra/internal/fixedpoint"
	"github.com/libra-ina/libra/lut"
)

// Run carries the study out. It returns [harness.ErrConfig] for a bad configuration
// and the errors of an unreadable or malformed log.
func Run(c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	table, err := lut.New(lut.Config{})
	if err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0))
	r1, err := gradients(c, rng)
	if err != nil {
		return nil, err
	}
	r2 := uniform("R2 uniform (-1, 1)", -1, c.Pairs, rng)
	// The paper has no data set of one sign, where sums grow fastest.
	growing := uniform("uniform (0, 1)", 0, c.Pairs, rng)

	r := &Report{Trials: c.Trials, Senders: c.Senders, Tables: table.Budget(), Bound: table.Bound()}
	pairs := slot{table, fixedpoint.Format{Exp: fixedpoint.DefaultExp}}
	for i, d := range []dataSet{r1, r2} {
		for _, a := range arithmetics {
			p, err := table2(d, a, pairs, 0)
			if err != nil {
				return nil, fmt.Errorf("arithmetic study: %s of %s: %w", a, d.name, err)
			}
			if paper, ok := paperTable2[a]; ok {
				p.Paper = &paper[i]
			}
			r.Precision = append(r.Precision, p)
		}
	}
	if r.Foreign, err = table2(r2, Fixed, pairs, r1.medianBound()); err != nil {
		return nil, fmt.Errorf("arithmetic study: foreign scale: %w", err)
	}
	for _, d := range []dataSet{r1, r2, growing} {
		r.DataSets = append(r.DataSets, describe(d))
		long, err := longSums(d, c, table)
		if err != nil {
			return nil, err
		}
		r.LongSums = append(r.LongSums, long...)
	}
	r.Memory = memory(c, r.Tables)
	r.Advice = r.advice()
	return r, nil
}

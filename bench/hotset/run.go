package hotset

import "fmt"

// Run carries the study out. It returns [ErrConfig] for a bad configuration and
// the errors of unreadable or malformed logs.
func Run(c Config) (Report, error) {
	c, err := c.withDefaults()
	if err != nil {
		return Report{}, err
	}
	logs, err := load(c)
	if err != nil {
		return Report{}, err
	}
	r := Report{Samples: c.Samples, MinGain: c.MinGain, BatchRows: c.BatchRows}
	for _, l := range logs {
		r.Logs = append(r.Logs, describe(l))
		p, err := precision(l, c)
		if err != nil {
			return Report{}, fmt.Errorf("hotset study: precision on %s: %w", l.name, err)
		}
		r.Precision = append(r.Precision, p...)
		for _, combined := range []bool{true, false} {
			packed, err := packets(l, c, combined)
			if err != nil {
				return Report{}, fmt.Errorf("hotset study: packets of %s: %w", l.name, err)
			}
			r.Packets = append(r.Packets, packed...)
			filled, err := lanes(l, c, combined)
			if err != nil {
				return Report{}, fmt.Errorf("hotset study: lanes of %s: %w", l.name, err)
			}
			r.Lanes = append(r.Lanes, filled...)
		}
	}
	return r, nil
}

func describe(l *trainingLog) Log {
	var top uint64
	for _, c := range l.full.Counts[:min(topParameters, len(l.full.Counts))] {
		top += c.Updates
	}
	return Log{
		Name: l.name, Rows: l.rows(), Updates: l.full.Updates, Parameters: len(l.full.Counts),
		Top30K: float64(top) / float64(l.full.Updates),
	}
}

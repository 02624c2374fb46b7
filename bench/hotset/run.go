package hotset

import "fmt"

// Run carries the study out. It returns [harness.ErrConfig] for a bad configuration
// and the errors of unreadable or malformed logs.
func Run(c Config) (*Report, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	logs, err := load(c)
	if err != nil {
		return nil, err
	}
	r := &Report{Samples: c.Samples, MinGain: c.MinGain, BatchRows: c.BatchRows}
	for _, l := range logs {
		r.Logs = append(r.Logs, l.describe())
		p, err := precision(l, c)
		if err != nil {
			return nil, fmt.Errorf("hotset study: precision on %s: %w", l.name, err)
		}
		r.Precision = append(r.Precision, p...)
		for _, combined := range []bool{true, false} {
			packed, err := packets(l, c, combined)
			if err != nil {
				return nil, fmt.Errorf("hotset study: packets of %s: %w", l.name, err)
			}
			r.Packets = append(r.Packets, packed...)
			filled, err := lanes(l, c, combined)
			if err != nil {
				return nil, fmt.Errorf("hotset study: lanes of %s: %w", l.name, err)
			}
			r.Lanes = append(r.Lanes, filled...)
		}
	}
	return r, nil
}

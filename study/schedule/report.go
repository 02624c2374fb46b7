// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"fmt"
	"slices"

	"github.com/libra-ina/libra/internal/report/experiment"
)

// Units of bytes.
const (
	mb = 1_000_000
	gb = 1000 * mb
)

// The schemes.
const (
	Geryon          = "Geryon"
	ATPAny          = "ATP, any path"
	ATPProgrammable = "ATP, programmable path"
	ESAAny          = "ESA, any path"
	ESAProgrammable = "ESA, programmable path"
	GOAT            = "GOAT (KRGS)"
	Planned         = "plan"
	Bound           = "bound"
)

// Schemes returns all schemes, in the order of the tables.
func Schemes() []string {
	return []string{Geryon, ATPAny, ATPProgrammable, ESAAny, ESAProgrammable, GOAT, Planned, Bound}
}

// The sweeps.
const (
	ByWorkers   = "workers"   // Figures 10 to 12
	ByDeviation = "deviation" // Figure 13
)

// Report is the outcome of a study. It marshals to one JSON object.
type Report struct {
	Placements int         `json:"placements"` // of programmable switches and hosts, for each figure
	Seed       uint64      `json:"seed"`
	Figure2    []Transfers `json:"figure_2"`
	Points     []Point     `json:"points"`
	Crossings  []Crossing  `json:"crossings"`
	Quality    []Quality   `json:"quality"`
	Claims     []Claim     `json:"claims"` // figures of the paper that contradict its settings
}

// Range is a figure over the placements.
type Range struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

func rangeOf(values []float64) (r Range) {
	if len(values) == 0 {
		return r
	}
	for _, v := range values {
		r.Mean += v / float64(len(values))
	}
	r.Min, r.Max = slices.Min(values), slices.Max(values)
	return r
}

// Point is what one scheme does with some workers at some deviation of their rates, for a gradient
// of each worker.
type Point struct {
	Fabric    string  `json:"fabric"`
	Model     int     `json:"model_bytes"` // of a worker's gradient
	Sweep     string  `json:"sweep"`       // workers or deviation: what varies
	Workers   int     `json:"workers"`
	Deviation float64 `json:"deviation"` // standard deviation of the workers' rates
	Scheme    string  `json:"scheme"`
	Server    Range   `json:"server_bytes"`     // what reaches the server
	InNetwork Range   `json:"in_network_bytes"` // what the workers send less that
	Traffic   Range   `json:"traffic_bytes"`    // bytes times links
}

// Crossing says from which deviation on a scheme that shares memory causes more traffic than a
// plan, on average, of those that were simulated.
type Crossing struct {
	Fabric  string   `json:"fabric"`
	Model   int      `json:"model_bytes"`
	Workers int      `json:"workers"`
	Scheme  string   `json:"scheme"`
	Than    string   `json:"than"`
	After   *float64 `json:"after,omitempty"` // the last at which it does not; absent: it always does
	From    *float64 `json:"from,omitempty"`  // the first from which on it does; absent: it does not at the last
}

func (c *Crossing) String() string {
	switch {
	case c.From == nil:
		return "not up to it"
	case c.After == nil:
		return "always"
	}
	return fmt.Sprintf("above %g, from %g on", *c.After, *c.From)
}

// Quality says how good plans are.
type Quality struct {
	Fabric string `json:"fabric"`
	Model  int    `json:"model_bytes"`
	Plans  int    `json:"plans"`
	Gap    Range  `json:"gap"`    // cost of plans above the lower bound, as a share of it
	Excess Range  `json:"excess"` // memory that KRGS takes of some switch before the repair, as a share of it
}

// report adds what the sweep has found to a report.
func (s *sweep) report(r *Report) {
	for _, p := range s.order {
		outcomes := s.points[p]
		over := func(figure func(o outcome) float64) Range {
			return rangeOf(experiment.Pick(outcomes, func(o outcome) float64 { return figure(o) * mb }))
		}
		sent := float64(p.Workers * s.model)
		p.Traffic = over(func(o outcome) float64 { return o.traffic })
		if p.Scheme != Bound {
			p.Server = over(func(o outcome) float64 { return o.server })
			p.InNetwork = over(func(o outcome) float64 { return sent - o.server })
		}
		r.Points = append(r.Points, p)
	}
	for _, scheme := range []string{ATPAny, ATPProgrammable, ESAAny, ESAProgrammable} {
		for _, than := range []string{GOAT, Planned} {
			if len(s.config.Deviations) > 0 {
				r.Crossings = append(r.Crossings, s.crossing(r, scheme, than))
			}
		}
	}
	r.Quality = append(r.Quality, Quality{s.name, s.model * mb, len(s.gaps), rangeOf(s.gaps), rangeOf(s.excess)})
}

func (s *sweep) crossing(r *Report, scheme, than string) Crossing {
	c := Crossing{Fabric: s.name, Model: s.model * mb, Workers: s.sweepWorkers, Scheme: scheme, Than: than}
	for _, d := range s.config.Deviations { // in ascending order
		mean := func(scheme string) float64 {
			return r.find(s.name, s.model*mb, ByDeviation, s.sweepWorkers, d, scheme).Traffic.Mean
		}
		switch dearer := mean(scheme) > mean(than); {
		case !dearer:
			c.After, c.From = &d, nil
		case c.From == nil:
			c.From = &d
		}
	}
	return c
}

// find returns a point, or one of zeros.
func (r *Report) find(fabric string, model int, sweep string, workers int, deviation float64, scheme string) Point {
	found := experiment.Find(r.Points, func(p Point) bool {
		return p.Fabric == fabric && p.Model == model && p.Sweep == sweep && p.Workers == workers &&
			p.Deviation == deviation && p.Scheme == scheme
	})
	if found == nil {
		return Point{}
	}
	return *found
}

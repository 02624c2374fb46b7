// SPDX-License-Identifier: Apache-2.0

package export

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/libra-ina/libra/telemetry"
)

// Set collects the values of a scrape. A value that has the name and labels of an earlier one is
// folded into it.
type Set struct {
	limits  *limits
	entries map[string]*entry
	order   []*entry
}

// entry is a series.
type entry struct {
	family *Family
	name   string
	labels []string
	value  float64
	count  uint64                 // of a summary, whose sum is value
	times  telemetry.Distribution // of a histogram
}

func newSet(l *limits) *Set { return &Set{limits: l, entries: map[string]*entry{}} }

// at returns the entry of a series, nil if it is not shown, and whether it is new.
func (s *Set) at(f *Family, name string, labels []string) (e *entry, added bool) {
	folded := false
	for _, l := range labels {
		folded = folded || l == other
	}
	if folded && f.fold == none {
		return nil, false
	}
	key := name + "\x00" + strings.Join(labels, "\x00")
	if e = s.entries[key]; e != nil {
		return e, false
	}
	e = &entry{family: f, name: name, labels: labels}
	s.entries[key] = e
	s.order = append(s.order, e)
	return e, true
}

// add adds a value.
func (s *Set) add(f *Family, value float64, labels ...string) { s.addNamed(f, f.Name, value, labels) }

func (s *Set) addNamed(f *Family, name string, value float64, labels []string) {
	e, added := s.at(f, name, labels)
	switch {
	case e == nil:
	case added:
		e.value = value
	case f.fold == most:
		e.value = max(e.value, value)
	default:
		e.value += value
	}
}

// addCounters adds counters by name. What is refused is also added up in all.
func (s *Set) addCounters(f, all *Family, counters map[string]uint64, labels ...string) {
	refused := uint64(0)
	for name, n := range counters {
		if all != nil && strings.HasPrefix(name, "refused_") {
			refused += n
		}
		s.addNamed(f, strings.Replace(f.Name, CounterName, metricName(name), 1), float64(n), labels)
	}
	if all != nil {
		s.add(all, float64(refused), labels...)
	}
}

// metricName replaces what names of metrics may not have.
func metricName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '_':
			return r
		}
		return '_'
	}, strings.ToLower(name))
}

// addTimes adds the number and the sum of times.
func (s *Set) addTimes(f *Family, count uint64, sum time.Duration, labels ...string) {
	if e, _ := s.at(f, f.Name, labels); e != nil {
		e.count += count
		e.value += sum.Seconds()
	}
}

// addSeries adds a distribution of times.
func (s *Set) addSeries(d telemetry.Distribution, labels ...string) {
	if e, _ := s.at(latency, latency.Name, labels); e != nil {
		e.times = e.times.Plus(d)
	}
}

// size is the number of series of an entry in the text format.
func (e *entry) size() int {
	switch e.family.Kind {
	case Histogram:
		return 3
	case Summary:
		return 2
	}
	return 1
}

// schema is that of the buckets of [telemetry.Histogram]: eight for each factor of two.
const schema = 3

// metric returns the entry in the form of Prometheus. The process has counted since started.
func (e *entry) metric(started time.Time) (prometheus.Metric, error) {
	desc := prometheus.NewDesc(e.name, e.family.Help, e.family.Labels, nil)
	switch e.family.Kind {
	case Histogram:
		counts := map[int]int64{}
		for i, n := range e.times.Counts {
			if n > 0 {
				counts[e.times.First+i] = int64(n)
			}
		}
		// The smallest time above 0 is a nanosecond.
		return prometheus.NewConstNativeHistogram(desc, e.times.Count(), e.times.Sum.Seconds(), counts, nil, e.times.Zeros,
			schema, 0, started, e.labels...)
	case Summary:
		return prometheus.NewConstSummary(desc, e.count, e.value, nil, e.labels...)
	case Counter:
		return prometheus.NewConstMetric(desc, prometheus.CounterValue, e.value, e.labels...)
	}
	return prometheus.NewConstMetric(desc, prometheus.GaugeValue, e.value, e.labels...)
}

// limits bounds how many things of a kind have series of their own. One that has none gets none
// while it exists: a counter would seem to run backwards.
type limits struct {
	kinds map[string]*places
}

// places are the things of a kind that were seen.
type places struct {
	own  map[string]bool // whether each has series of its own
	used int
	seen map[string]bool // during this scrape
}

func newLimits() *limits { return &limits{map[string]*places{}} }

// label returns a thing's name, or "other" if limit things of its kind have series of their own.
func (l *limits) label(kind, name string, limit int) string {
	p := l.kinds[kind]
	if p == nil {
		p = &places{own: map[string]bool{}, seen: map[string]bool{}}
		l.kinds[kind] = p
	}
	own, known := p.own[name]
	if !known {
		if own = p.used < limit; own {
			p.used++
		}
		p.own[name] = own
	}
	p.seen[name] = true
	if !own {
		return other
	}
	return name
}

// endScrape forgets what was not seen any more.
func (l *limits) endScrape() {
	for _, p := range l.kinds {
		for name, own := range p.own {
			if p.seen[name] {
				continue
			}
			delete(p.own, name)
			if own {
				p.used--
			}
		}
		clear(p.seen)
	}
}

package aggregator

import (
	"errors"
	"fmt"
	"slices"
	"time"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// Test is the name of a measurement; see the package documentation.
type Test string

// The tests.
const (
	Cost        Test = "cost"
	Throughput  Test = "throughput"
	Negotiation Test = "negotiation"
)

// Tests returns all tests.
func Tests() []Test { return []Test{Cost, Throughput, Negotiation} }

// Arithmetics and Modes return all that a job can have.
func Arithmetics() []plane.Arithmetic { return []plane.Arithmetic{plane.Exact, plane.LUT, plane.Fixed} }

// Modes returns all modes.
func Modes() []plane.Mode { return []plane.Mode{plane.Combine, plane.FetchAdd, plane.Sync} }

// Config says what to measure; its zero value measures everything.
type Config struct {
	// Tests to run; empty: all of Tests().
	Tests []Test
	// Arithmetics of the jobs; empty: all of Arithmetics().
	Arithmetics []plane.Arithmetic

	// Modes, Stripes and Hot are what Cost combines with each other: modes of the
	// job, stripes of a frame and numbers of hot parameters. Empty: all of Modes();
	// 1, 2, 5 and 10; 1,000, 30,000 and 65,536.
	Modes   []plane.Mode
	Stripes []int
	Hot     []int

	// Sweep are the numbers of hot parameters of Throughput; empty: from 1,000 to
	// 65,536.
	Sweep []int
	// Exponents are those of the Zipf distributions of Throughput; nil: 0.83 and
	// 0.97, with which 30,000 of 2^20 parameters take about half and 70 % of the
	// updates, as in the paper's two production tasks.
	Exponents []float64

	// Workers are the numbers of workers of Negotiation; empty: 2, 4 and 8.
	Workers []int
	// Backends are the links of Negotiation; empty: UDP and AF_XDP.
	Backends []link.Backend
	// Parameters is the length of the vector that Negotiation reduces; 0 means
	// 30,000.
	Parameters int

	// Rounds is how often each measurement is repeated; 0 means 5.
	Rounds int
	// Duration is about what one measurement takes; 0 means 15 ms for a test run,
	// 200 ms for iterations of workers.
	Duration time.Duration

	// SkipDenied leaves out, with a note in Report.Unavailable, what the process
	// lacks the privileges for. Otherwise that is an error.
	SkipDenied bool
	// Progress, if not nil, is called before each measurement.
	Progress func(Step)
}

// Step is one measurement of a run.
type Step struct {
	Done, Total int // measurements before this one, and in all
	What        string
}

// ErrConfig is wrapped by errors about a Config.
var ErrConfig = errors.New("aggregator benchmark: invalid configuration")

// Limits of a Config.
const (
	leastHot   = 22 * wire.MaxStripes // what one frame names
	maxRounds  = 1000
	maxMeasure = time.Minute
)

// defaultTo gives a list that is empty its default.
func defaultTo[T any](list *[]T, fallback []T) {
	if len(*list) == 0 {
		*list = fallback
	}
}

func (c Config) withDefaults() (Config, error) {
	defaultTo(&c.Tests, Tests())
	defaultTo(&c.Arithmetics, Arithmetics())
	defaultTo(&c.Modes, Modes())
	defaultTo(&c.Stripes, []int{1, 2, 5, wire.MaxStripes})
	defaultTo(&c.Hot, []int{1000, paperHot, plane.MaxSlots})
	defaultTo(&c.Sweep, []int{1000, 2000, 5000, 10_000, 20_000, paperHot, 40_000, 50_000, 2 * paperHot, plane.MaxSlots})
	defaultTo(&c.Exponents, []float64{0.83, 0.97})
	defaultTo(&c.Workers, []int{2, 4, 8})
	defaultTo(&c.Backends, []link.Backend{link.BackendUDP, link.BackendAFXDP})
	if c.Parameters == 0 {
		c.Parameters = paperHot
	}
	if c.Rounds == 0 {
		c.Rounds = 5
	}
	return c, c.check()
}

// duration returns the configured duration of a measurement.
func (c Config) duration(fallback time.Duration) time.Duration {
	if c.Duration == 0 {
		return fallback
	}
	return c.Duration
}

func (c Config) check() error {
	for _, t := range c.Tests {
		if !slices.Contains(Tests(), t) {
			return fmt.Errorf("%w: no test %q; there are %v", ErrConfig, t, Tests())
		}
	}
	for _, b := range c.Backends {
		if b != link.BackendUDP && b != link.BackendAFXDP {
			return fmt.Errorf("%w: backend %v is neither udp nor afxdp", ErrConfig, b)
		}
	}
	for _, s := range c.Exponents {
		if !(s >= 0 && s <= 4) {
			return fmt.Errorf("%w: Zipf exponent %v, want 0 to 4", ErrConfig, s)
		}
	}
	for _, f := range []struct {
		name        string
		values      []int
		least, most int
	}{
		{"stripes a frame", c.Stripes, 1, wire.MaxStripes},
		{"hot parameters", c.Hot, leastHot, plane.MaxSlots},
		{"hot parameters", c.Sweep, leastHot, plane.MaxSlots},
		{"workers", c.Workers, 1, plane.MaxWorkers},
		{"parameters", []int{c.Parameters}, 1, plane.MaxSlots},
		{"rounds", []int{c.Rounds}, 1, maxRounds},
	} {
		for _, v := range f.values {
			if v < f.least || v > f.most {
				return fmt.Errorf("%w: %d %s, want %d to %d", ErrConfig, v, f.name, f.least, f.most)
			}
		}
	}
	if c.Duration < 0 || c.Duration > maxMeasure {
		return fmt.Errorf("%w: duration of %v, want at most %v", ErrConfig, c.Duration, maxMeasure)
	}
	return nil
}

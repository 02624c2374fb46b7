package aggregator

import (
	"time"

	plane "github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/harness"
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

// Arithmetics returns all arithmetics.
func Arithmetics() []plane.Arithmetic { return []plane.Arithmetic{plane.Exact, plane.LUT, plane.Fixed} }

// Modes returns all modes.
func Modes() []plane.Mode { return []plane.Mode{plane.Combine, plane.FetchAdd, plane.Sync} }

// What one measurement takes unless Config.Duration is given.
const (
	RunTime       = 15 * time.Millisecond  // a test run of the XDP program
	IterationTime = 200 * time.Millisecond // the iterations of workers in a round
)

// Backend is a kind of link that Negotiation measures.
type Backend string

// The backends.
const (
	UDP   Backend = "udp"   // kernel UDP sockets and the Go aggregator
	AFXDP Backend = "afxdp" // AF_XDP sockets and the XDP aggregator
)

// Backends returns all backends.
func Backends() []Backend { return []Backend{UDP, AFXDP} }

// Config is what to measure; [Defaults] is everything.
type Config struct {
	Tests       []Test
	Arithmetics []plane.Arithmetic // of the jobs

	// Modes, Stripes and Hot are what Cost combines with each other: modes of the
	// job, stripes of a frame and numbers of hot parameters.
	Modes   []plane.Mode
	Stripes []int
	Hot     []int

	// Sweep are the numbers of hot parameters of Throughput.
	Sweep []int
	// Exponents are those of the Zipf distributions of Throughput.
	Exponents []float64

	// Workers are the numbers of workers of Negotiation.
	Workers []int
	// Backends are the links of Negotiation.
	Backends []Backend
	// Parameters is the length of the vector that Negotiation reduces.
	Parameters int

	// Rounds is how often each measurement is repeated.
	Rounds int
	// Duration is about what one measurement takes; 0 means RunTime or
	// IterationTime.
	Duration time.Duration

	// SkipDenied leaves out, with a note in Report.Unavailable, what the process
	// lacks the privileges for. Otherwise that is an error.
	SkipDenied bool
	Progress   harness.Progress // may be nil
}

// Defaults returns the configuration that measures everything. With its
// exponents, 30,000 of 2^20 parameters take about half and 70 % of the updates, as
// in the paper's two production tasks.
func Defaults() Config {
	return Config{
		Tests: Tests(), Arithmetics: Arithmetics(),
		Modes: Modes(), Stripes: []int{1, 2, 5, wire.MaxStripes}, Hot: []int{1000, paperHot, plane.MaxSlots},
		Sweep:     []int{1000, 2000, 5000, 10_000, 20_000, paperHot, 40_000, 50_000, 2 * paperHot, plane.MaxSlots},
		Exponents: []float64{0.83, 0.97},
		Workers:   []int{2, 4, 8}, Backends: Backends(), Parameters: paperHot,
		Rounds: 5,
	}
}

// Limits of a Config.
const (
	leastHot   = 22 * wire.MaxStripes // what one frame names
	maxRounds  = 1000
	maxMeasure = time.Minute
)

func (c *Config) check() error {
	return harness.Check("aggregator benchmark",
		harness.Known("test", Tests(), c.Tests...),
		harness.Known("backend", Backends(), c.Backends...),
		harness.InRange("as a Zipf exponent", 0, 4, c.Exponents...),
		harness.InRange("stripes a frame", 1, wire.MaxStripes, c.Stripes...),
		harness.InRange("hot parameters", leastHot, plane.MaxSlots, c.Hot...),
		harness.InRange("hot parameters", leastHot, plane.MaxSlots, c.Sweep...),
		harness.InRange("workers", 1, plane.MaxWorkers, c.Workers...),
		harness.InRange("parameters", 1, plane.MaxSlots, c.Parameters),
		harness.InRange("rounds", 1, maxRounds, c.Rounds),
		harness.InRange("for one measurement", 0, maxMeasure, c.Duration),
	)
}

// duration returns what one measurement takes.
func (c *Config) duration(fallback time.Duration) time.Duration {
	if c.Duration == 0 {
		return fallback
	}
	return c.Duration
}

package push

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
)

// Names of peers.
const (
	// PeerLibra is the whole system: AF_XDP workers, the XDP aggregator, the
	// parameter server.
	PeerLibra = "libra"
	// PeerHash is ps-lite's pattern over ZeroMQ, summed in a std::unordered_map
	// as its default handle does.
	PeerHash = "zeromq-hash"
	// PeerTable is the same transport, summed in a port of the parameter
	// server's own table.
	PeerTable = "zeromq-table"
)

// Peers returns the names of all peers in the order of their turns.
func Peers() []string { return []string{PeerLibra, PeerHash, PeerTable} }

// The workload, as the package documentation describes it.
const (
	// Keys is the number of different keys.
	Keys = 1 << 20
	// Exponent is that of the Zipf distribution of the keys.
	Exponent = 1.1
	// HotKeys is how many of the hottest keys the aggregator sums.
	HotKeys = 30_000
	// InFlight is how many pushes of a worker may be unacknowledged.
	InFlight = 16

	// batchesEach is the number of different batches of a worker.
	batchesEach = 1024
)

// Limits of a Config.
const (
	maxWorkers = 64
	maxBatch   = 16384
)

// Config says what to measure; its zero value measures everything.
type Config struct {
	// Workers are the numbers of workers; empty: 1, 2, 4 and 8.
	Workers []int
	// Batches are the numbers of pairs in a push; empty: 4096, 256 and 32.
	Batches []int
	// Peers to run; empty: all of Peers().
	Peers []string
	// Rounds is how often each measurement is repeated; 0 means 3.
	Rounds int
	// Duration of one measurement; 0 means 250 ms.
	Duration time.Duration
	// WarmUp before each measurement; 0 means 100 ms.
	WarmUp time.Duration
	// Harvest is the time between two harvests of the aggregator's sums; 0 means
	// DefaultHarvest.
	Harvest time.Duration
	// PeerCommand is a command that calls RunPeer with the arguments that are
	// appended to it. Empty: this executable with the arguments "bench",
	// "push", "peer".
	PeerCommand []string
	// Progress, if not nil, is called before each measurement.
	Progress func(Step)
}

// DefaultHarvest is Config.Harvest's default.
const DefaultHarvest = 50 * time.Millisecond

// Step is one measurement of a run.
type Step struct {
	Done, Total int // measurements before this one, and in all
	Workers     int
	Batch       int // pairs in a push
	Peer        string
	Round       int // from 0 on
}

// ErrConfig is wrapped by errors about a Config.
var ErrConfig = errors.New("push: invalid configuration")

func (c Config) withDefaults() (Config, error) {
	if len(c.Workers) == 0 {
		c.Workers = []int{1, 2, 4, 8}
	}
	if len(c.Batches) == 0 {
		c.Batches = []int{4096, 256, 32}
	}
	if len(c.Peers) == 0 {
		c.Peers = Peers()
	}
	for _, f := range []struct {
		field    *time.Duration
		fallback time.Duration
	}{{&c.Duration, 250 * time.Millisecond}, {&c.WarmUp, 100 * time.Millisecond}, {&c.Harvest, DefaultHarvest}} {
		if *f.field == 0 {
			*f.field = f.fallback
		}
	}
	if c.Rounds == 0 {
		c.Rounds = 3
	}
	if len(c.PeerCommand) == 0 {
		self, err := os.Executable()
		if err != nil {
			return c, fmt.Errorf("push: find this executable, which is to run the peers: %w", err)
		}
		c.PeerCommand = []string{self, "bench", "push", "peer"}
	}
	return c, c.check()
}

func (c Config) check() error {
	for _, n := range c.Workers {
		if n < 1 || n > maxWorkers {
			return fmt.Errorf("%w: %d workers, want 1 to %d", ErrConfig, n, maxWorkers)
		}
	}
	for _, n := range c.Batches {
		if n < 1 || n > maxBatch {
			return fmt.Errorf("%w: batches of %d pairs, want 1 to %d", ErrConfig, n, maxBatch)
		}
	}
	for _, p := range c.Peers {
		if !slices.Contains(Peers(), p) {
			return fmt.Errorf("%w: no peer %q; there are %v", ErrConfig, p, Peers())
		}
	}
	switch {
	case c.Rounds < 1:
		return fmt.Errorf("%w: %d rounds", ErrConfig, c.Rounds)
	case c.Duration < 10*time.Millisecond || c.Duration > time.Minute:
		return fmt.Errorf("%w: duration of %v, want 10ms to 1m", ErrConfig, c.Duration)
	case c.WarmUp < 0 || c.WarmUp > time.Minute:
		return fmt.Errorf("%w: warm-up of %v, want at most 1m", ErrConfig, c.WarmUp)
	case c.Harvest < time.Millisecond || c.Harvest > time.Minute:
		return fmt.Errorf("%w: harvests every %v, want 1ms to 1m", ErrConfig, c.Harvest)
	}
	return nil
}

// cpu returns the CPU of a process: the server is the first one, worker i comes
// i+1 places after it.
func cpu(process int) int { return process % runtime.NumCPU() }

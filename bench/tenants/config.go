// Package tenants measures whether tenants of one aggregator disturb each other.
// It is what 'libra bench tenants' runs.
//
// Tenants share a switch that runs the XDP program and the control daemon on a
// network of namespaces. One job in combine mode with exact arithmetic and one in
// fetchadd mode with fixed arithmetic push known gradients, and are harvested by
// time. Beside them, in the second run, a third job floods: its host sends, as fast
// as an AF_XDP socket can and in the name of as many senders as a job gets, frames
// that cost the aggregator most (the last of 220 sums overflows, the last rank is
// out of range, values of half the range with the sums asked for), and some with a
// wrong checksum or of a sender that was not admitted. From a fourth host, senders
// join and leave, and jobs are created and removed, in four loops each.
//
// Every run checks that the sums that the first two got are those of what they
// pushed, integer for integer. What is measured is the time between their harvests.
// All processes share the machine's cores, as the flood's frames and the daemon do
// on a software switch.
package tenants

import (
	"fmt"
	"time"

	"github.com/libra-ina/libra/bench/harness"
)

// Config is how long to measure, and how; [Defaults] is runs of three seconds.
type Config struct {
	// Duration of each of the two runs: ten harvests at least.
	Duration time.Duration
	// Harvest is the time between two harvests that the jobs ask for, 1ms at
	// least.
	Harvest time.Duration
	// ThreadedNAPI is the switch's setting of that name.
	ThreadedNAPI bool
	// ChildCommand calls [RunChild]; nil: see [child.Command].
	ChildCommand []string
	// Progress, if not nil, is called before each run.
	Progress harness.Progress
}

// Defaults returns the configuration of runs of three seconds.
func Defaults() Config { return Config{Duration: 3 * time.Second, Harvest: 20 * time.Millisecond} }

func (c *Config) check() error {
	if c.Harvest < time.Millisecond || c.Duration < 10*c.Harvest {
		return fmt.Errorf("%w: a harvest every %v for %v: at least 1ms, and ten harvests, are needed", harness.ErrConfig, c.Harvest, c.Duration)
	}
	return nil
}

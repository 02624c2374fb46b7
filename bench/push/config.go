// SPDX-License-Identifier: Apache-2.0

// Package push measures pushes through the whole system, from a worker's slices
// to the acknowledgement, beside the same pushes as key-value messages over
// ZeroMQ. It is what 'libra bench push' runs; docs/benchmarks.md describes its workload,
// its baselines and whose CPU time is whose.
package push

import (
	"runtime"
	"slices"
	"time"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/trace"
	"github.com/libra-ina/libra/packer"
)

// What is compared.
const (
	// Libra is the whole system: AF_XDP workers, the XDP aggregator, the
	// parameter server. The workers prepare their batches before they push.
	Libra = "libra"
	// Unprepared is Libra with workers that look the keys of each push up.
	Unprepared = "libra-unprepared"
	// Lossy is Libra with workers that lose a share of the frames that they send, and of those
	// that they receive.
	Lossy = "libra-lossy"
	// Logged is Libra with workers that keep what the aggregator has acknowledged in a log until the
	// server has it, as those of jobs do that outlive their aggregator.
	Logged = "libra-logged"
	// Agent is Libra with one host agent, through which the workers push prepared batches. Each of
	// them is a process that reaches the agent through shared memory.
	Agent = "agent"
	// AgentUnprepared is Agent with an agent that looks the keys of each push up.
	AgentUnprepared = "agent-unprepared"
	// AgentSeparate is Agent with an agent that does not add up what waits.
	AgentSeparate = "agent-separate"
	// ZeroMQHash is ps-lite's pattern over ZeroMQ, summed in a
	// std::unordered_map as its default handle does.
	ZeroMQHash = "zeromq-hash"
	// ZeroMQTable is the same transport, summed in a port of the parameter
	// server's own table.
	ZeroMQTable = "zeromq-table"
	// SwitchML adds up vectors of all gradients, zeros too: jobs in sync mode with fixed arithmetic,
	// whose workers agree on a scale. Only replays have it.
	SwitchML = "switchml"
)

// Baselines returns Libra and what it is compared with, in the order of their
// turns.
func Baselines() []string {
	return []string{Libra, ZeroMQHash, ZeroMQTable, Unprepared, Lossy, Logged, Agent, AgentUnprepared,
		AgentSeparate}
}

func ours(baseline string) bool { return baseline != ZeroMQHash && baseline != ZeroMQTable }

func throughAgent(baseline string) bool {
	return baseline == Agent || baseline == AgentUnprepared || baseline == AgentSeparate
}

// The workload, as docs/benchmarks.md describes it.
const (
	// Keys is the number of different keys.
	Keys = 1 << 20
	// Exponent is that of the Zipf distribution of the keys.
	Exponent = 1.1
	// HotKeys is how many of the hottest keys the aggregator sums unless Config.Hot says otherwise.
	HotKeys = 30_000
	// AutoHot is the number of hot rows that costs least, as [heat.Auto] chooses it for the rate that
	// is measured with the first of Config.Hot.
	AutoHot = 0
	// InFlight is how many pushes of a worker may be unacknowledged.
	InFlight = 16

	// denseSlots is how many values workers of SwitchML have under way at most: as many slots as a job
	// with rounds has. Its rate is also measured with fewer, see denseSizes.
	denseSlots = packer.PageSlots

	// batchesEach is the number of different batches of a worker.
	batchesEach = 1024
)

// denseSizes returns the numbers of slots with which SwitchML is measured: what a switch with less
// memory has too, which shows how far memory is what limits it.
func denseSizes() []int { return []int{denseSlots, denseSlots / 2, denseSlots / 4} }

// Config is what to measure; [Defaults] is everything.
type Config struct {
	Workers   []int    // numbers of workers
	Batches   []int    // numbers of pairs in a push
	Baselines []string // of Baselines(), Libra among them
	// Servers are numbers of servers, and Hot numbers of hot rows, or AutoHot, of Libra and
	// Unprepared; other baselines have the first of each. nil: one server, HotKeys hot rows. The study
	// of scale has one server.
	Servers, Hot []int
	// Rounds is how often each measurement is repeated.
	Rounds   int
	Duration time.Duration // of one measurement
	WarmUp   time.Duration // before each measurement
	Harvest  time.Duration // between two harvests of the aggregator's sums
	Loss     float64       // share of the frames that Lossy loses in each direction
	Scale    bool          // add the study of scale, see [ScaleDefaults]
	Line     float64       // Gbit/s of a link in the study of scale
	// Traces are replayed with ReplayBaselines, in place of everything that is drawn; Batches and
	// Scale are not used.
	Traces       []*trace.Trace
	ChildCommand []string            // calls [RunChild]; nil: see [child.Command]
	Progress     experiment.Progress // may be nil
}

// Defaults returns the configuration that measures everything.
func Defaults() Config {
	return Config{
		Workers: []int{1, 2, 4, 8}, Servers: []int{1}, Hot: []int{HotKeys},
		Batches: []int{4096, 256, 32}, Baselines: Baselines(), Rounds: 3,
		Duration: 250 * time.Millisecond, WarmUp: 100 * time.Millisecond, Harvest: 50 * time.Millisecond, Loss: 0.01,
		Line: 25,
	}
}

// ScaleDefaults returns the configuration of the study of scale: one number of workers, from whose
// costs it derives the rates of others, and baselines of [ScaleBaselines].
func ScaleDefaults() Config {
	c := Defaults()
	c.Scale, c.Workers, c.Baselines = true, []int{2}, ScaleBaselines()
	return c
}

// ScaleBaselines returns what the study of scale knows.
func ScaleBaselines() []string { return []string{Libra, ZeroMQHash, ZeroMQTable} }

// ReplayDefaults returns the configuration of replays of traces.
func ReplayDefaults(traces []*trace.Trace) Config {
	c := Defaults()
	c.Traces, c.Workers, c.Baselines, c.Duration = traces, []int{4, 8}, ReplayBaselines(), 500*time.Millisecond
	return c
}

// ReplayBaselines returns what replays know. The first is Libra of the figure: its workers look the
// keys of each push up, since a training's next push has others.
func ReplayBaselines() []string {
	return []string{Unprepared, Libra, ZeroMQHash, ZeroMQTable, SwitchML}
}

// costWorkers is the number of workers of which a replay measures what each role costs.
const costWorkers = 2

func (c *Config) checkFields() error {
	known, line := Baselines(), 1.0
	if len(c.Traces) > 0 {
		known, line = ReplayBaselines(), c.Line
	} else if c.Scale {
		known, line = ScaleBaselines(), c.Line
		if !slices.Equal(c.Servers, []int{1}) {
			return experiment.Check("push", &experiment.ConfigError{Field: "servers",
				Problem: "the study of scale measures one server"})
		}
		if len(c.Workers) != 1 {
			return experiment.Check("push", &experiment.ConfigError{Field: "workers",
				Problem: "the study of scale measures one number of workers"})
		}
	}
	if len(c.Hot) > 0 && c.Hot[0] == AutoHot {
		return experiment.Check("push", &experiment.ConfigError{Field: "hot",
			Problem: "auto needs the rate with another number of hot rows before it"})
	}
	return experiment.Check("push",
		experiment.InRange("servers", 1, maxServers, c.Servers...),
		experiment.InRange("hot", AutoHot, Keys, c.Hot...),
		experiment.InRange("workers", 1, 64, c.Workers...),
		experiment.InRange("batches", 1, 16384, c.Batches...),
		experiment.Known("baseline", known, c.Baselines...),
		experiment.InRange("rounds", 1, 1000, c.Rounds),
		experiment.InRange("duration", 10*time.Millisecond, time.Minute, c.Duration),
		experiment.InRange("warm-up", 0, time.Minute, c.WarmUp),
		experiment.InRange("harvest", time.Millisecond, time.Minute, c.Harvest),
		experiment.InRange("loss", 0, 0.5, c.Loss),
		experiment.InRange("line", 0.001, 10_000, line),
	)
}

// maxServers is the largest number of servers.
const maxServers = 8

// cpu returns the CPU of a process: the server is the first one, worker i comes
// i+1 places after it.
func cpu(process int) int { return process % runtime.NumCPU() }

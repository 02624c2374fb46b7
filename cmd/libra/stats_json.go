// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/telemetry"
)

// Statistics is the JSON object of 'libra stats'.
type Statistics struct {
	Processes []ProcessStatistics `json:"processes"`
	Agent     *AgentStatistics    `json:"agent,omitempty"` // if --agent is given
}

// ProcessStatistics are those of one process. Exactly one of Switch, Server and Error is set.
type ProcessStatistics struct {
	Address string            `json:"address"` // of its control service
	Switch  *SwitchStatistics `json:"switch,omitempty"`
	Server  *ServerStatistics `json:"ps,omitempty"`
	Error   string            `json:"error,omitempty"` // why it did not answer
}

// AgentStatistics are those of an agent. Exactly one of Stats and Error is set.
type AgentStatistics struct {
	Socket string       `json:"socket"`
	Stats  *agent.Stats `json:"stats,omitempty"`
	Error  string       `json:"error,omitempty"` // why it did not answer
}

// SwitchStatistics are those of a switch: its daemon and its aggregator.
type SwitchStatistics struct {
	Jobs        []JobStatistics   `json:"jobs"`
	Slots       uint64            `json:"slots"` // of all jobs together, at most
	SlotsUsed   uint64            `json:"slots_used"`
	Senders     uint64            `json:"senders"`      // of all jobs together, at most
	SendersUsed uint64            `json:"senders_used"` // reserved by jobs
	MemoryBytes uint64            `json:"memory_bytes"` // of the jobs' banks
	Counters    map[string]uint64 `json:"counters"`
}

// ServerStatistics are those of a parameter server.
type ServerStatistics struct {
	Rows     uint64            `json:"rows"`
	Steps    uint64            `json:"steps"`
	Harvests uint64            `json:"harvests"`
	Counters map[string]uint64 `json:"counters"`
	// Latencies are the times of drawn frames; none if the cluster's telemetry.sample is 0.
	Latencies []telemetry.Summary `json:"latencies,omitempty"`
}

// JobStatistics are those of one job of a switch.
type JobStatistics struct {
	Job uint32 `json:"job"`
	// Instance is different for every job that was ever created. It has 64 bits, which many readers
	// of JSON do not accept as a number.
	Instance        uint64            `json:"instance,string"`
	Owner           string            `json:"owner"`      // the address that created it
	Held            bool              `json:"held"`       // its owner is connected
	LeaseS          float64           `json:"lease_s"`    // until the job is removed; the whole lease while it is held
	Mode            string            `json:"mode"`       // combine, fetchadd, sync or acked
	Arithmetic      string            `json:"arithmetic"` // exact, lut or fixed
	Exponent        int32             `json:"exponent"`   // one unit is 2 to this power
	Epoch           uint32            `json:"epoch"`
	Workers         uint32            `json:"workers"`
	Senders         uint32            `json:"senders"`          // admitted now
	SendersReserved uint32            `json:"senders_reserved"` // as its server asked for
	Slots           uint32            `json:"slots"`
	MemoryBytes     uint64            `json:"memory_bytes"` // of its banks
	Harvests        uint64            `json:"harvests"`
	HarvestPeriod   time.Duration     `json:"harvest_period_ns"` // as asked for; 0: none
	HarvestFrames   uint64            `json:"harvest_frames"`    // as asked for; 0: none
	HarvestInterval Timing            `json:"harvest_interval"`  // between the starts of two harvests
	HarvestHeld     Timing            `json:"harvest_held"`      // from a harvest's start until the server had applied it
	GradientAge     Timing            `json:"gradient_age"`      // of a harvest's oldest gradient, at most, when the server had applied it
	Counters        map[string]uint64 `json:"counters"`
	// Children are the jobs at other switches whose harvests this one takes, as their parent.
	Children []ChildStatistics `json:"children,omitempty"`
	// Latencies are the times of drawn frames; none if the switch's telemetry.sample is 0, or it is a
	// P4 switch.
	Latencies []telemetry.Summary `json:"latencies,omitempty"`
}

// ChildStatistics are those of a job at another switch whose harvests a job takes.
type ChildStatistics struct {
	Job           uint32        `json:"job"`
	Control       string        `json:"control"` // control service of its switch
	Instance      uint64        `json:"instance,string"`
	Harvests      uint64        `json:"harvests"`
	Repeated      uint64        `json:"repeated"`       // of these, sent again on a new connection
	BrokenStreams uint64        `json:"broken_streams"` // connections for harvests that broke
	Answer        Timing        `json:"answer"`         // from asking until the harvest is there
	Awaited       time.Duration `json:"awaited_ns"`     // since it was asked for a harvest that it has not sent; 0: none
}

// Timing sums up times.
type Timing struct {
	Count uint64        `json:"count"`
	Last  time.Duration `json:"last_ns"`
	Mean  time.Duration `json:"mean_ns"`
	Max   time.Duration `json:"max_ns"`
}

// JobList is the JSON object of 'libra job list'.
type JobList struct {
	Jobs []JobStatistics `json:"jobs"`
}

func newTiming(t *pb.Timing) Timing {
	return Timing{t.GetCount(), time.Duration(t.GetLastNs()), time.Duration(t.GetMeanNs()), time.Duration(t.GetMaxNs())}
}

func (t Timing) String() string {
	if t.Count == 0 {
		return "–"
	}
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	return fmt.Sprintf("last %v, mean %v, max %v", round(t.Last), round(t.Mean), round(t.Max))
}

func newSwitchStatistics(s *pb.AggregatorStats) *SwitchStatistics {
	return &SwitchStatistics{
		Jobs: newJobStatistics(s.Jobs), Slots: s.Slots, SlotsUsed: s.SlotsUsed, Senders: s.Senders,
		SendersUsed: s.SendersUsed,
		MemoryBytes: s.MemoryBytes, Counters: s.Counters,
	}
}

func newServerStatistics(s *pb.ServerStats) *ServerStatistics {
	return &ServerStatistics{Rows: s.Rows, Steps: s.Steps, Harvests: s.Harvests, Counters: s.Counters,
		Latencies: control.LatencySummaries(s.Latencies)}
}

func newJobStatistics(jobs []*pb.JobStats) (all []JobStatistics) {
	for _, j := range jobs {
		all = append(all, JobStatistics{
			Job: j.Job, Instance: j.Instance, Owner: j.Owner, Held: j.Held, LeaseS: float64(j.LeaseMs) / 1e3,
			Mode: lower(j.Mode, "MODE_"), Arithmetic: lower(j.Arithmetic, "ARITHMETIC_"), Exponent: j.Exponent, Epoch: j.Epoch,
			Workers: j.Workers, Senders: j.Senders, SendersReserved: j.SendersReserved, Slots: j.Slots,
			MemoryBytes: j.MemoryBytes,
			Harvests:    j.Harvests, HarvestPeriod: time.Duration(j.HarvestPeriodUs) * time.Microsecond,
			HarvestFrames:   j.HarvestFrames,
			HarvestInterval: newTiming(j.HarvestInterval), HarvestHeld: newTiming(j.HarvestHeld),
			GradientAge: newTiming(j.GradientAge), Counters: j.Counters,
			Children: newChildStatistics(j.Children), Latencies: control.LatencySummaries(j.Latencies),
		})
	}
	return all
}

func newChildStatistics(children []*pb.ChildStats) (all []ChildStatistics) {
	for _, c := range children {
		all = append(all, ChildStatistics{
			Job: c.Job, Control: c.Control, Instance: c.Instance, Harvests: c.Harvests, Repeated: c.Repeated,
			BrokenStreams: c.BrokenStreams, Answer: newTiming(c.Answer), Awaited: time.Duration(c.AwaitedNs),
		})
	}
	return all
}

// lower returns an enum value's name without its prefix.
func lower(v fmt.Stringer, prefix string) string {
	return strings.ToLower(strings.TrimPrefix(v.String(), prefix))
}

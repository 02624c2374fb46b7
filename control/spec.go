// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/wire"
)

var modes = map[pb.Mode]aggregator.Mode{
	pb.Mode_MODE_COMBINE:  aggregator.Combine,
	pb.Mode_MODE_FETCHADD: aggregator.FetchAdd,
	pb.Mode_MODE_SYNC:     aggregator.Sync,
	pb.Mode_MODE_ACKED:    aggregator.Acked,
}

var arithmetics = map[pb.Arithmetic]aggregator.Arithmetic{
	pb.Arithmetic_ARITHMETIC_EXACT: aggregator.Exact,
	pb.Arithmetic_ARITHMETIC_LUT:   aggregator.LUT,
	pb.Arithmetic_ARITHMETIC_FIXED: aggregator.Fixed,
}

// ArithmeticMessage returns the message value of an arithmetic.
func ArithmeticMessage(a aggregator.Arithmetic) pb.Arithmetic {
	for message, arithmetic := range arithmetics {
		if arithmetic == a {
			return message
		}
	}
	return pb.Arithmetic_ARITHMETIC_UNSPECIFIED
}

// ArithmeticOf returns the arithmetic of a message, or false for a value that this version does not
// know.
func ArithmeticOf(message pb.Arithmetic) (aggregator.Arithmetic, bool) {
	a, known := arithmetics[message]
	return a, known
}

// modeMessage returns the message value of a mode.
func modeMessage(m aggregator.Mode) pb.Mode {
	for message, mode := range modes {
		if mode == m {
			return message
		}
	}
	return pb.Mode_MODE_UNSPECIFIED
}

// ModeOf returns the mode of a message, or false for a value that this version
// does not know.
func ModeOf(message pb.Mode) (aggregator.Mode, bool) {
	m, known := modes[message]
	return m, known
}

// jobConfig translates a specification, with its defaults filled in. Its errors name the field and
// the allowed values.
func (a *Aggregator) jobConfig(spec *pb.JobSpec) (aggregator.JobConfig, error) {
	refuse := func(format string, args ...any) (aggregator.JobConfig, error) {
		return aggregator.JobConfig{}, status.Errorf(codes.InvalidArgument, "job %d: "+format,
			append([]any{spec.Job}, args...)...)
	}
	mode, known := ModeOf(spec.Mode)
	if !known {
		return refuse("mode: %v is none of combine, fetchadd, sync, acked", spec.Mode)
	}
	arithmetic, known := ArithmeticOf(spec.Arithmetic)
	if !known {
		return refuse("arithmetic: %v is none of exact, lut, fixed", spec.Arithmetic)
	}
	switch {
	case spec.Job >= aggregator.MaxJobs:
		return refuse("ids end at %d", aggregator.MaxJobs-1)
	case spec.Workers > aggregator.MaxWorkers: // before the conversion to int
		return refuse("workers: %d, at most %d can take part in rounds", spec.Workers, aggregator.MaxWorkers)
	case spec.Stripes > uint32(a.cfg.Stripes):
		return refuse("stripes: %d, this aggregator takes at most %d in a frame", spec.Stripes, a.cfg.Stripes)
	case spec.Senders != 0 && spec.Senders < spec.Workers:
		return refuse("senders: %d, but %d workers take part in rounds", spec.Senders, spec.Workers)
	case spec.Senders > maxSenders:
		return refuse("senders: %d, a job has at most %d", spec.Senders, maxSenders)
	case len(spec.ServerMacs) > maxHosts:
		return refuse("server_macs: %d, a job has at most %d servers and other switches", len(spec.ServerMacs), maxHosts)
	case slices.ContainsFunc(spec.ServerMacs, func(mac []byte) bool { return len(mac) != len([6]byte{}) }):
		return refuse("server_macs: one of them is no Ethernet address of 6 bytes")
	case mode.HasRounds() && spec.HarvestPeriodUs != 0:
		return refuse("harvest_period: %v, but in %v mode the sums go to the workers and there is no harvest",
			harvestPeriod(spec), mode)
	case mode.HasRounds() && spec.HarvestFrames != 0:
		return refuse("harvest_frames: %d, but in %v mode the sums go to the workers and there is no harvest",
			spec.HarvestFrames, mode)
	}
	cfg := aggregator.JobConfig{
		ID:         uint16(spec.Job),
		Mode:       mode,
		Arithmetic: arithmetic,
		Exp:        aggregator.DefaultExp(arithmetic),
		Workers:    int(spec.Workers),
		Slots:      int(spec.Slots),
		MaxStripes: a.cfg.Stripes,
		Layouts:    aggregator.Aligned,
	}
	if spec.Exponent != nil {
		cfg.Exp = int(*spec.Exponent)
	}
	if spec.Stripes != 0 {
		cfg.MaxStripes = int(spec.Stripes)
	}
	if a.cfg.Dense && !mode.HasRounds() {
		cfg.Layouts |= aggregator.Dense
	}
	cfg, err := cfg.Complete()
	if err == nil {
		err = cfg.CheckPages(a.cfg.Plane.Pages())
	}
	if err != nil {
		return cfg, planeError(err)
	}
	return cfg, nil
}

// maxHosts is the number of servers, and of the switches of a plan besides one.
const maxHosts = wire.MaxServers + 15

// maxSenders is the number of 16-bit sender ids.
const maxSenders = 1 << 16

func harvestPeriod(spec *pb.JobSpec) time.Duration {
	return time.Duration(spec.HarvestPeriodUs) * time.Microsecond
}

// admission returns what the aggregator accepts from a sender that it has admitted.
func (a *Aggregator) admission(j *job, m *member) *pb.Admission {
	t := a.terms(j)
	t.Epoch, t.Token = uint32(m.Epoch), m.token[:]
	return t
}

// terms returns what the aggregator accepts from any sender of a job.
func (a *Aggregator) terms(j *job) *pb.Admission {
	return &pb.Admission{
		Stripes:    uint32(j.cfg.MaxStripes),
		Dense:      j.cfg.Layouts&aggregator.Dense != 0,
		Window:     wire.DefaultWindow,
		Mode:       j.spec.Mode,
		Arithmetic: j.spec.Arithmetic,
		Exponent:   int32(j.cfg.Exp),
		Workers:    uint32(j.cfg.Workers),
		Instance:   j.instance,
		GraceMs:    uint32(a.cfg.Grace.Milliseconds()),
		Pages:      uint32(j.cfg.Pages()),
	}
}

// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport"
)

// number is the label of a number.
func number[T uint16 | uint32](n T) string { return strconv.FormatUint(uint64(n), 10) }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// AddSwitch adds the statistics of a switch. With many jobs, those beyond 32 are other.
func (s *Set) AddSwitch(st *pb.AggregatorStats) {
	s.add(switchJobs, float64(len(st.Jobs)))
	s.add(switchSlots, float64(st.Slots))
	s.add(switchSlotsUsed, float64(st.SlotsUsed))
	s.add(switchSenders, float64(st.Senders))
	s.add(switchSendersUsed, float64(st.SendersUsed))
	s.add(switchMemory, float64(st.MemoryBytes))
	s.addCounters(switchCounters, switchRefused, st.Counters)
	for _, j := range st.Jobs {
		s.addJob(j, s.limits.label("job", number(j.Job), maxSwitchJobs))
	}
}

func (s *Set) addJob(j *pb.JobStats, job string) {
	s.add(jobHeld, truth(j.Held), job)
	s.add(jobLease, float64(j.LeaseMs)/1e3, job)
	s.add(jobEpoch, float64(j.Epoch), job)
	s.add(jobExponent, float64(j.Exponent), job)
	s.add(jobWorkers, float64(j.Workers), job)
	s.add(jobSenders, float64(j.Senders), job)
	s.add(jobReserved, float64(j.SendersReserved), job)
	s.add(jobSlots, float64(j.Slots), job)
	s.add(jobMemory, float64(j.MemoryBytes), job)
	s.add(jobHarvests, float64(j.Harvests), job)
	s.add(jobPeriod, float64(j.HarvestPeriodUs)/1e6, job)
	s.add(jobFrames, float64(j.HarvestFrames), job)
	s.addTiming(j.HarvestInterval, jobInterval, jobIntervalOf, jobIntervalMx, job)
	s.addTiming(j.HarvestHeld, jobHarvestFor, jobHeldLast, jobHeldMax, job)
	s.addTiming(j.GradientAge, jobAge, jobAgeLast, jobAgeMax, job)
	s.add(jobChildren, float64(len(j.Children)), job)
	for _, c := range j.Children {
		s.add(childTaken, float64(c.Harvests), job, c.Control)
		s.add(childAgain, float64(c.Repeated), job, c.Control)
		s.add(childBroken, float64(c.BrokenStreams), job, c.Control)
		s.addTiming(c.Answer, childAnswer, childAnswerLast, childAnswerMax, job, c.Control)
		s.add(childAwaited, float64(c.AwaitedNs)/1e9, job, c.Control)
	}
	s.addCounters(jobCounters, jobRefused, j.Counters, job)
	for _, m := range j.Latencies {
		s.addSeries(telemetry.Distribution{
			Zeros: m.Zeros, Sum: time.Duration(m.SumNs), First: int(m.First), Counts: m.Counts,
		}, job, "", m.Op, m.Part, m.Peer)
	}
}

func (s *Set) addTiming(t *pb.Timing, times, last, longest *Family, labels ...string) {
	s.addTimes(times, t.GetCount(), time.Duration(t.GetCount()*t.GetMeanNs()), labels...)
	s.add(last, float64(t.GetLastNs())/1e9, labels...)
	s.add(longest, float64(t.GetMaxNs())/1e9, labels...)
}

// AddServer adds the statistics of a job's parameter server, without its times.
func (s *Set) AddServer(job uint16, st *pb.ServerStats) {
	at := number(job)
	s.add(serverRows, float64(st.Rows), at)
	s.add(serverSteps, float64(st.Steps), at)
	s.add(serverHarvests, float64(st.Harvests), at)
	s.addCounters(serverCounters, nil, st.Counters, at)
}

// AddServerTimes adds what a server of a job has measured: the worker is the other end.
func (s *Set) AddServerTimes(job uint16, r *telemetry.Recorder) {
	s.addLoop(r, number(job), "")
	for _, t := range r.Series() {
		worker, _ := strings.CutPrefix(t.Peer.String(), "worker ")
		s.addSeries(t.Distribution, number(job), worker, t.Op.String(), t.Part.String(), t.Peer.String())
	}
}

// AddArrivals adds when the workers of a job arrive at the ends of steps.
func (s *Set) AddArrivals(job uint16, all []control.Arrivals) {
	for _, a := range all {
		worker := s.limits.label("arriving worker", number(a.Worker), telemetry.MaxPeers)
		s.addTimes(stepsAfter, a.Steps, a.After, number(job), worker)
		s.add(stepsLast, float64(a.Last), number(job), worker)
		s.add(stepsAwaited, a.Awaited.Seconds(), number(job), worker)
	}
}

// addLoop adds how an endpoint's loop spends its time.
func (s *Set) addLoop(r *telemetry.Recorder, job, worker string) {
	if l, ok := r.Load(); ok {
		s.add(loopTime, l.Waiting.Seconds(), job, worker, "waiting")
		s.add(loopTime, (l.Calls - l.Sums).Seconds(), job, worker, "calls")
		s.add(loopTime, l.Sums.Seconds(), job, worker, "sums")
		s.add(loopTime, l.Frames().Seconds(), job, worker, "frames")
	}
}

// AddWorker adds the counters of a worker, and what it has measured. The label of the job is its
// number, or what tells it from the other jobs of an agent.
func (s *Set) AddWorker(job string, worker uint16, st *transport.WorkerStats, r *telemetry.Recorder) {
	at, id := s.agentJob(job), number(worker)
	if at == other {
		id = other
	}
	s.addLoop(r, at, id)
	for _, t := range r.Series() {
		s.addSeries(t.Distribution, at, id, t.Op.String(), t.Part.String(), t.Peer.String())
	}
	if st == nil { // it has not answered yet
		return
	}
	flow := func(op string, f *retransmit.Stats) {
		for _, c := range []struct {
			family *Family
			value  uint64
		}{{sentFrames, f.Sent}, {ackedFrames, f.Acked}, {coveredFrames, f.Covered}, {refusedFrames, f.Refused},
			{repeatedFrames, f.Retransmitted}, {probes, f.Probes}, {backoffs, f.Backoffs}, {spurious, f.Spurious},
			{inFlight, uint64(f.Bound)}} {
			s.add(c.family, float64(c.value), at, id, op)
		}
		s.add(roundTrip, f.SRTT.Seconds(), at, id, op)
		s.add(retransmitAfter, f.RTO.Seconds(), at, id, op)
	}
	s.add(betweenCalls, st.Own.Seconds(), at, id)
	s.add(hotSetShare, st.HotSetShare, at, id)
	s.add(peerSilence, st.SilentHot.Seconds(), at, id, telemetry.Aggregator.String())
	for i, d := range st.SilentCold {
		peer := telemetry.Others
		if i < telemetry.MaxPeers {
			peer = telemetry.Server(uint16(i))
		}
		s.add(peerSilence, d.Seconds(), at, id, peer.String())
	}
	flow("hot", &st.Hot)
	flow("cold", &st.Cold)
	for _, c := range []struct {
		family *Family
		value  uint64
	}{{pushesMade, st.Pushes}, {pullsMade, st.Pulls},
		{pairsHot, st.PairsHot}, {pairsPushed, st.PairsPushed}, {pairsCold, st.PairsCold}, {pairsAdded, st.PairsAdded},
		{rowsCold, st.RowsCold}, {rowsAt, st.RowsAt},
		{renamed, st.Renamed}, {keysPulled, st.KeysPulled}, {vanished, st.Vanished}, {logFrames, uint64(st.LogFrames)},
		{logBytes, uint64(st.LogBytes)}, {logWaits, st.LogWaits}, {settled, st.Settled}, {results, st.Results},
		{malformed, st.Malformed}, {stray, st.Stray}, {unsent, st.Link.SendError}, {foreign, st.Link.Foreign},
		{truncated, st.Link.Truncated}, {badChecksum, st.Link.BadChecksum}, {overrun, st.Link.Overrun}} {
		s.add(c.family, float64(c.value), at, id)
	}
}

// agentJob is the label of a job of a host agent, which may have many.
func (s *Set) agentJob(job string) string { return s.limits.label("agent's job", job, maxAgentJobs) }

// AddAgent adds the statistics of a host agent. label returns the label of a job by its name, and
// whether its worker is added by AddWorker.
func (s *Set) AddAgent(st *agent.Stats, label func(name string) (job string, added bool)) {
	s.add(agentJobs, float64(len(st.Jobs)))
	s.add(agentRefused, total(st.Refused))
	for _, j := range st.Jobs {
		job, added := label(j.Name)
		at := s.agentJob(job)
		s.add(agentMemory, float64(j.Memory), at)
		s.add(agentEnded, total(j.Ended), at)
		s.add(agentClients, float64(len(j.Clients)), at)
		s.add(agentLearning, float64(j.Learning), at)
		if !added {
			s.add(pairsHot, float64(j.PairsSent), at, "")
			s.add(pairsAdded, float64(j.PairsAdded), at, "")
			s.add(vanished, float64(j.Vanished), at, "")
		}
		for _, c := range j.Clients {
			client := fmt.Sprint("client ", c.Client)
			if s.limits.label("client", j.Name+"\x00"+client, maxClients) == other {
				client = other
			}
			s.addClient(&c, at, client)
		}
	}
}

func (s *Set) addClient(c *agent.ClientStats, job, client string) {
	for _, v := range []struct {
		family *Family
		value  uint64
	}{{clientMemory, c.Memory}, {clientInFlight, uint64(max(0, c.InFlight))}, {clientPrepared, c.Prepared},
		{clientPushes, c.Pushes}, {clientAcked, c.Acknowledged}, {clientFailed, c.Failed}, {clientKeys, c.KeysPushed},
		{clientPulls, c.Pulls}, {clientPulled, c.KeysPulled}} {
		s.add(v.family, float64(v.value), job, client)
	}
}

// total adds up counts by code.
func total(counts map[agent.Code]uint64) (n float64) {
	for _, c := range counts {
		n += float64(c)
	}
	return n
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/internal/linux/testbed"
	"github.com/libra-ina/libra/wire"
)

// roundsJob is a job with rounds and the contributions of its workers: numbers that depend only on
// round, rank and worker, so that each worker's frames can be generated again.
type roundsJob struct {
	aggregator.JobConfig
	groups int
	first  int // the host of worker 0; the others follow it
}

func newRoundsJob(tb testing.TB, cfg aggregator.JobConfig) *roundsJob {
	tb.Helper()
	cfg, err := cfg.Complete()
	if err != nil {
		tb.Fatal(err)
	}
	group := cfg.MaxStripes * wire.Lanes
	return &roundsJob{JobConfig: cfg, groups: (cfg.Slots + group - 1) / group}
}

// host returns the host of worker i.
func (j *roundsJob) host(i int) wire.Endpoint { return conformance.Host(j.first + i) }

// worker returns the configuration of worker i as a sender.
func (j *roundsJob) worker(i int) aggregator.SenderConfig {
	h := j.host(i)
	return aggregator.SenderConfig{ID: uint16(100 + i), Epoch: j.Epoch, MAC: h.MAC, IP: h.IP}
}

// start starts the job on a plane and admits its workers.
func (j *roundsJob) start(tb testing.TB, p aggregator.Plane) {
	tb.Helper()
	if err := p.AddJob(j.JobConfig); err != nil {
		tb.Fatal(err)
	}
	for i := range j.Workers {
		if err := p.AddSender(j.ID, j.worker(i)); err != nil {
			tb.Fatal(err)
		}
	}
}

// frame returns worker i's contribution to a round of a group.
func (j *roundsJob) frame(i, round, group int) []byte {
	e, err := wire.NewEnvelope(j.host(i), conformance.Aggregator)
	if err != nil {
		panic(err) // both are IPv4
	}
	first := group * j.MaxStripes
	ranks := min(j.Slots-first*wire.Lanes, j.MaxStripes*wire.Lanes)
	stripes := (ranks + wire.Lanes - 1) / wire.Lanes
	frame := make([]byte, e.Len()+wire.HotLen(stripes))
	payload := frame[e.Len():]
	wire.Header{
		Type: wire.TypeHot, Job: j.ID, Sender: j.worker(i).ID, Epoch: j.Epoch,
		Seq: uint32(wire.FirstSeq + round*j.groups + group),
	}.Put(payload)
	rng := rand.New(rand.NewPCG(uint64(i), uint64(round*j.groups+group)))
	for r := range ranks {
		s := wire.StripeAt(payload, r/wire.Lanes)
		s.SetMask(s.Mask() | 1<<(r%wire.Lanes))
		s.SetSlot(r%wire.Lanes, uint16(first+r/wire.Lanes))
		if j.Arithmetic == aggregator.Fixed {
			s.SetBits(r%wire.Lanes, rng.Uint32()&0xffffff)
		} else {
			s.SetValue(r%wire.Lanes, float32(rng.NormFloat64()))
		}
	}
	e.Seal(frame)
	return frame
}

// taken returns worker i's TAKEN of a round of the first group, where that is the only one.
func (j *roundsJob) taken(i, round int) []byte {
	e, err := wire.NewEnvelope(j.host(i), conformance.Aggregator)
	if err != nil {
		panic(err) // both are IPv4
	}
	frame := make([]byte, e.Len()+wire.TakenLen)
	h := wire.Header{Job: j.ID, Sender: j.worker(i).ID, Epoch: j.Epoch, Seq: uint32(wire.FirstSeq + round)}
	wire.PutTaken(frame[e.Len():], h, wire.TakenReport{Round: uint32(round)})
	e.Seal(frame)
	return frame
}

// results returns the model's answers to all, by round and group.
func (j *roundsJob) results(t *testing.T, m *aggregator.Model, rounds int) [][][]byte {
	t.Helper()
	reply := make([]byte, aggregator.MaxReply)
	all := make([][][]byte, rounds)
	for round := range rounds {
		for group := range j.groups {
			for i := range j.Workers {
				v, n := m.Process(j.frame(i, round, group), reply)
				switch {
				case i == j.Workers-1 && v.Action == aggregator.Broadcast:
					all[round] = append(all[round], append([]byte(nil), reply[:n]...))
				case v.Action != aggregator.Reply:
					t.Fatalf("round %d, group %d, worker %d: the model's verdict is %v", round, group, i, v)
				}
			}
			for i := 0; i < j.Workers && j.Mode == aggregator.Acked; i++ {
				m.Process(j.taken(i, round), reply)
			}
		}
	}
	return all
}

// participant is a worker that takes part in all rounds over its host's sockets, as an endpoint
// does: one frame of each group is outstanding, and is retransmitted after a while.
type participant struct {
	*roundsJob
	index   int
	host    *host
	results [][][]byte
	rng     *rand.Rand // decides which answers are lost
	round   []int      // of each group
	asked   int        // results that arrived only on request
}

func (p *participant) run() error {
	const patience = 20 * time.Millisecond
	deadline := time.Now().Add(eventLimit)
	p.round = make([]int, p.groups)
	sent := make([]time.Time, p.groups)
	for group := range p.groups {
		if err := p.send(group, false, sent); err != nil {
			return err
		}
	}
	for done := 0; done < p.groups; {
		frame, err := p.host.wait(time.Now().Add(patience))
		if err != nil {
			return err
		}
		if frame != nil {
			group, err := p.take(frame)
			if err != nil {
				return err
			}
			if group >= 0 {
				p.round[group]++
				if p.round[group] == len(p.results) {
					done++
				} else if err := p.send(group, false, sent); err != nil {
					return err
				}
			}
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("worker %d is stuck in rounds %v", p.index, p.round)
		}
		for group := range p.groups {
			if p.round[group] < len(p.results) && time.Since(sent[group]) > patience {
				if err := p.send(group, true, sent); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (p *participant) send(group int, again bool, sent []time.Time) error {
	frame := p.frame(p.index, p.round[group], group)
	if again {
		e, err := wire.NewEnvelope(p.roundsJob.host(p.index), conformance.Aggregator)
		if err != nil {
			return err
		}
		wire.MarkRetx(frame[e.Len():])
		e.Seal(frame)
	}
	sent[group] = time.Now()
	return p.host.send(frame)
}

// take processes a frame. It returns the group whose round it completes, or -1.
func (p *participant) take(frame []byte) (int, error) {
	parsed, err := wire.ParseFrame(frame, wire.DefaultPort)
	if err != nil {
		return -1, fmt.Errorf("frame %x: %w", frame, err)
	}
	h, err := wire.ParseHeader(parsed.Payload)
	if err != nil {
		return -1, fmt.Errorf("frame %x: %w", frame, err)
	}
	if h.Type != wire.TypeAck {
		return -1, fmt.Errorf("worker %d: frame %x is no ACK", p.index, frame)
	}
	if h.Flags&wire.FlagSum == 0 || h.Flags&wire.FlagAll != 0 && p.rng.IntN(8) == 0 {
		return -1, nil // others are missing, or the answer is lost
	}
	group := int(wire.StripeAt(parsed.Payload, 0).Slot(0)) / p.MaxStripes
	round := p.round[group]
	if h.Flags&wire.FlagAll != 0 {
		if int(h.Seq) != round {
			return -1, nil // from an earlier round
		}
		if want := p.results[round][group]; !bytes.Equal(frame, want) {
			return -1, fmt.Errorf("worker %d, round %d, group %d:\nanswer  %x\nmodel's %x", p.index, round, group, frame, want)
		}
		return group, nil
	}
	if int(h.Seq) != wire.FirstSeq+round*p.groups+group {
		return -1, nil // the answer to an earlier request
	}
	p.asked++
	want := p.results[round][group][wire.EnvelopeLen+wire.HeaderLen:]
	if got := parsed.Payload[wire.HeaderLen:]; h.Flags != wire.FlagSum || !bytes.Equal(got, want) {
		return -1, fmt.Errorf("worker %d, round %d, group %d: asked again:\nresult  %x\nmodel's %x", p.index, round, group, got, want)
	}
	return group, nil
}

// Four workers on four ports with two queues each, on all CPUs at once.
func TestRoundsOnInterfaces(t *testing.T) {
	for id, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed} {
		t.Run(arithmetic.String(), func(t *testing.T) {
			const workers, rounds, queues = 4, 60, 2
			job := newRoundsJob(t, aggregator.JobConfig{
				ID: uint16(20 + id), Epoch: 3, Mode: aggregator.Sync, Arithmetic: arithmetic, Workers: workers, Slots: 700,
			})
			inNetwork(t, workers, testbed.VethConfig{Queues: queues}, func() {
				w, m := openWired(t, workers, queues, afxdp.AttachNative), newModel(t)
				job.start(t, w)
				job.start(t, m)
				results := job.results(t, m, rounds)
				asked := 0
				participants := make([]*participant, workers)
				for i := range workers {
					participants[i] = &participant{
						roundsJob: job, index: i, host: w.hosts[i], results: results,
						rng: rand.New(rand.NewPCG(uint64(i), 99)),
					}
				}
				onAllCPUs(t, workers, func(i int) error { return participants[i].run() })
				for _, p := range participants {
					asked += p.asked
				}
				if asked == 0 {
					t.Error("no worker had to ask for a result")
				}
				got, err := w.JobCounters(job.ID)
				if err != nil {
					t.Fatal(err)
				}
				want, err := m.JobCounters(job.ID)
				if err != nil {
					t.Fatal(err)
				}
				t.Logf("%+v, %d results on request", got, asked)
				got.Duplicates, got.Raced = 0, 0 // depend on time
				if got != want {
					t.Errorf("counters are %+v, the model's %+v", got, want)
				}
			})
		})
	}
}

// Every frame is the only one of its round: it is added, becomes the result, and the other bank's
// slots are cleared.
func BenchmarkRounds(b *testing.B) {
	needPrivileges(b)
	for _, arithmetic := range []aggregator.Arithmetic{aggregator.Exact, aggregator.Fixed, aggregator.LUT} {
		b.Run(arithmetic.String(), func(b *testing.B) {
			const ranks = wire.DefaultStripes * wire.Lanes
			job := newRoundsJob(b, aggregator.JobConfig{
				Mode: aggregator.Sync, Arithmetic: arithmetic, Workers: 1, Slots: FeederFrames * ranks,
			})
			d := open(b)
			job.start(b, d)
			frames := make([][]byte, FeederFrames)
			for group := range frames {
				frames[group] = job.frame(0, 0, group)
				binary.BigEndian.PutUint32(frames[group][seqAt:], 0)
				conformance.Repair(frames[group])
			}
			feeder, err := d.NewFeeder(frames, len(frames[0]))
			if err != nil {
				b.Fatal(err)
			}
			defer feeder.Close()
			n := min(b.N, 1<<20)
			b.ResetTimer()
			ns, _, err := feeder.Run(n)
			b.StopTimer()
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(ns, "ns/frame")
			b.ReportMetric(ns/ranks, "ns/pair")
			c, err := d.JobCounters(job.ID)
			if err != nil {
				b.Fatal(err)
			}
			if c.Rounds < uint64(n) {
				b.Fatalf("%d frames, but %+v", n, c)
			}
		})
	}
}

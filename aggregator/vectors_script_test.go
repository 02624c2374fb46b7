// SPDX-License-Identifier: Apache-2.0

package aggregator_test

import (
	"math"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/aggregator/vectors"
	"github.com/libra-ina/libra/wire"
)

// script writes a file of vectors. Frames go to the job that was added last.
type script struct {
	file *vectors.File
	job  vectors.Job
}

func newScript(name, about string) *script {
	return &script{file: &vectors.File{Name: name, About: about, Address: conformance.Aggregator.IP}}
}

// addJob starts a job with the first senders of the conformance world. Their UDP
// ports may be given.
func (s *script) addJob(senders int, cfg aggregator.JobConfig, ports ...uint16) {
	s.job = vectors.Job{
		ID: cfg.ID, Epoch: cfg.Epoch, Mode: cfg.Mode.String(), Arithmetic: cfg.Arithmetic.String(), Exp: cfg.Exp,
		Workers: cfg.Workers, Slots: cfg.Slots, MaxStripes: cfg.MaxStripes,
	}
	if cfg.Layouts&aggregator.Aligned != 0 {
		s.job.Layouts = append(s.job.Layouts, "aligned")
	}
	if cfg.Layouts&aggregator.Dense != 0 {
		s.job.Layouts = append(s.job.Layouts, "dense")
	}
	for i := range senders {
		c := conformance.Sender(i)
		if i < len(ports) {
			c.Port = ports[i]
		}
		s.job.Senders = append(s.job.Senders, vectors.Sender{ID: c.ID, Epoch: cfg.Epoch, MAC: c.MAC, IP: c.IP, Port: c.Port})
	}
	job := s.job
	job.Senders = slices.Clone(job.Senders)
	s.step(vectors.Step{AddJob: &job})
}

func (s *script) removeJob() {
	id := s.job.ID
	s.step(vectors.Step{RemoveJob: &id})
}

// readmit withdraws a sender and admits it anew, with another epoch.
func (s *script) readmit(sender int, epoch uint16) {
	s.step(vectors.Step{RemoveSender: &vectors.Withdrawal{Job: s.job.ID, Sender: s.job.Senders[sender].ID}})
	s.job.Senders[sender].Epoch = epoch
	s.step(vectors.Step{AddSender: &vectors.Admission{Job: s.job.ID, Sender: s.job.Senders[sender]}})
}

func (s *script) harvest() { s.step(vectors.Step{Harvest: &vectors.Harvest{Job: s.job.ID}}) }

func (s *script) step(step vectors.Step) { s.file.Steps = append(s.file.Steps, step) }

// send adds a payload of a sender, in a frame to the aggregator.
func (s *script) send(about string, sender int, payload []byte) {
	s.frame(about, seal(conformance.Host(sender), conformance.Aggregator, payload))
}

func (s *script) frame(about string, frame []byte) { s.frameFrom(0, about, frame) }

func (s *script) frameFrom(port int, about string, frame []byte) {
	s.step(vectors.Step{Frame: &vectors.Frame{About: about, From: port, Bytes: frame}})
}

// seal returns a frame with a payload.
func seal(src, dst wire.Endpoint, payload []byte) []byte {
	e, err := wire.NewEnvelope(src, dst)
	if err != nil {
		panic(err) // the endpoints are those of the conformance world
	}
	frame := append(make([]byte, e.Len()), payload...)
	e.Seal(frame)
	return frame
}

// header returns the header of a HOT frame.
func (s *script) header(sender int, seq uint32, flags wire.Flags) wire.Header {
	return wire.Header{
		Type: wire.TypeHot, Flags: flags, Job: s.job.ID, Sender: s.job.Senders[sender].ID, Epoch: s.job.Senders[sender].Epoch, Seq: seq,
	}
}

// taken returns the payload of a TAKEN frame of the job that was added last.
func (s *script) taken(sender int, seq uint32, group int, round uint32) []byte {
	first := group * max(1, s.job.MaxStripes)
	return wire.PutTaken(make([]byte, wire.TakenLen), s.header(sender, seq, 0), wire.TakenReport{First: uint16(first), Round: round})
}

// bitsPair is a pair whose number may be of any arithmetic.
type bitsPair struct {
	lane, slot int
	bits       uint32
}

// stripes returns a HOT payload with these stripes.
func stripes(h wire.Header, content ...[]bitsPair) []byte {
	payload := make([]byte, wire.HotLen(len(content)))
	h.Put(payload)
	for i, pairs := range content {
		s := wire.StripeAt(payload, i)
		for _, p := range pairs {
			s.SetMask(s.Mask() | 1<<p.lane)
			s.SetSlot(p.lane, uint16(p.slot))
			s.SetBits(p.lane, p.bits)
		}
	}
	return payload
}

// groupPayload returns a HOT payload with a whole group of slots, whose numbers
// are those of ranks 0, 1, ... from the group's first.
func groupPayload(cfg aggregator.JobConfig, h wire.Header, group int, numbers []uint32) []byte {
	var content [][]bitsPair
	for i, part := range slices.Collect(slices.Chunk(numbers, wire.Lanes)) {
		var pairs []bitsPair
		for lane, bits := range part {
			pairs = append(pairs, bitsPair{lane, group*cfg.MaxStripes + i, bits})
		}
		content = append(content, pairs)
	}
	return stripes(h, content...)
}

// scaleReport returns a SCALE payload.
func (s *script) scaleReport(sender int, seq, iteration uint32, exponent uint8) []byte {
	return wire.PutScale(make([]byte, wire.ScaleLen), s.header(sender, seq, 0), wire.ScaleReport{Iteration: iteration, Exponent: exponent})
}

// number returns x as a pair of an arithmetic carries it; in fixed arithmetic in
// units of 2^-20.
func number(a aggregator.Arithmetic, x float64) uint32 {
	if a == aggregator.Fixed {
		return uint32(int32(math.Ldexp(x, 20)))
	}
	return math.Float32bits(float32(x))
}

// largest returns the largest number of an arithmetic, with the default unit.
func largest(a aggregator.Arithmetic) uint32 {
	switch a {
	case aggregator.LUT:
		return math.Float32bits(math.MaxFloat32)
	case aggregator.Fixed:
		return math.MaxInt32
	}
	return math.Float32bits(math.Nextafter32(1<<17, 0))
}

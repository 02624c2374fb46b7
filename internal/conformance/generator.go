// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"math/rand/v2"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Generator makes random frames for the jobs and senders of [Setup]: mostly
// valid ones, repetitions, and frames that are wrong in every way that a
// receiver must notice. The same seed makes the same frames.
//
// It does not see the answers. In jobs with rounds, senders contribute in random
// order, so that rounds become complete by and by and many contributions come
// too early.
type Generator struct {
	rng     *rand.Rand
	jobs    []aggregator.JobConfig             // complete, in their present epochs
	senders [][Senders]aggregator.SenderConfig // by job, as they are admitted now
	epochs  []uint16                           // by job: of the next admission
	flows   map[flow]*history
	scales  []negotiation // by job
	ports   *rand.Rand
	port    int // of the last frame
	buf     [4096]byte
}

// longest is the length of the longest frames that a generator makes: an XDP program in
// native mode sees no longer ones as a whole, neither in a test run nor on a veth pair.
const longest = 3500 + 14

// oddPort is the UDP port of the last sender of every job. The others have the
// aggregator's.
const oddPort = 40_000

type flow struct{ job, sender int }

// history remembers payloads, to repeat them.
type history struct {
	next     uint32
	payloads [][]byte
}

const remembered = 64

// NewGenerator returns a generator of the frames that belong to a seed, for some
// jobs or, if none are given, for [Jobs].
func NewGenerator(seed uint64, jobs ...aggregator.JobConfig) *Generator {
	if len(jobs) == 0 {
		jobs = Jobs
	}
	g := &Generator{
		rng: rand.New(rand.NewPCG(seed, 0)), ports: rand.New(rand.NewPCG(seed, 1)), flows: make(map[flow]*history), scales: make([]negotiation, len(jobs)),
		senders: make([][Senders]aggregator.SenderConfig, len(jobs)),
	}
	for k, j := range jobs {
		j, err := j.Complete()
		if err != nil {
			panic(err) // a test's own table
		}
		g.jobs = append(g.jobs, j)
		g.epochs = append(g.epochs, j.Epoch)
		g.restart(k)
	}
	return g
}

// restart makes one of Jobs, by its index, a new one, with the next epochs. Frames
// of old epochs go on to arrive now and then.
func (g *Generator) restart(job int) {
	g.jobs[job].Epoch = g.epochs[job]
	if g.jobs[job].Workers > 0 {
		g.epochs[job]++
	}
	for i := range Senders {
		g.readmit(job, i)
	}
	g.scales[job] = negotiation{}
}

// readmit begins another admission of a sender of one of Jobs: its numbers start
// over, in the next epoch, or in a job with rounds in the job's.
func (g *Generator) readmit(job, sender int) {
	g.history(flow{job, sender}).next = wire.FirstSeq
	s := Sender(sender)
	if sender == Senders-1 {
		s.Port = oddPort
	}
	s.Epoch = g.jobs[job].Epoch
	if g.jobs[job].Workers == 0 {
		s.Epoch = g.epochs[job]
		g.epochs[job]++
	}
	g.senders[job][sender] = s
}

// source returns from where the frames of a flow come.
func (g *Generator) source(f flow) wire.Endpoint {
	e := Host(f.sender)
	if p := g.senders[f.job][f.sender].Port; p != 0 {
		e.Port = p
	}
	return e
}

// header returns the header of a flow's frame with a number.
func (g *Generator) header(f flow, seq uint32) wire.Header {
	s := g.senders[f.job][f.sender]
	return wire.Header{Type: wire.TypeHot, Job: g.jobs[f.job].ID, Sender: s.ID, Epoch: s.Epoch, Seq: seq}
}

func (g *Generator) oneIn(n int) bool { return g.rng.IntN(n) == 0 }

// Frame returns the next frame. It is valid until the next call.
func (g *Generator) Frame() []byte {
	f := flow{g.rng.IntN(len(g.jobs)), g.rng.IntN(Senders)}
	payload := g.payload(f)
	src, dst := g.source(f), Aggregator
	intact := true
	if g.oneIn(8) {
		payload, intact = g.spoil(payload), false
	}
	if g.oneIn(20) {
		src, dst = g.readdress(src, dst)
		intact = false
	}
	g.port = f.sender / 2 // as Routes has it
	if g.ports.IntN(8) == 0 {
		g.port = g.ports.IntN(2)
	}
	frame := g.seal(src, dst, payload)
	if g.oneIn(8) {
		frame = g.tag(frame)
	}
	if g.oneIn(10) {
		frame, intact = g.damage(frame), false
	}
	frame = frame[:min(len(frame), longest)]
	if intact && isScale(payload) {
		g.reported(f, payload)
	}
	return frame
}

// Port returns the port by which the last frame of Frame came in: 0 or 1.
func (g *Generator) Port() int { return g.port }

// Valid returns the next new HOT frame of a sender to one of Jobs, by its index,
// without anything wrong. The frames of a job with rounds go to one group of
// slots after the other, and are refused if the other senders do not keep pace.
// It is valid until the next call.
func (g *Generator) Valid(job, sender int) []byte {
	f := flow{job, sender}
	h := g.history(f)
	var p []byte
	if g.jobs[job].Mode == aggregator.Sync {
		p = g.contribution(f, h.next, int(h.next-wire.FirstSeq)%groups(g.jobs[job]))
	} else {
		p = g.hot(f, h.next)
	}
	h.next++
	return g.seal(g.source(f), Aggregator, p)
}

func (g *Generator) history(f flow) *history {
	h := g.flows[f]
	if h == nil {
		h = &history{next: wire.FirstSeq}
		g.flows[f] = h
	}
	return h
}

// payload returns a valid payload of a flow: a new one or a repetition.
func (g *Generator) payload(f flow) []byte {
	h := g.history(f)
	if len(h.payloads) > 0 && g.oneIn(6) {
		p := h.payloads[g.rng.IntN(len(h.payloads))]
		if g.oneIn(2) {
			wire.MarkRetx(p)
		}
		return p
	}
	switch {
	case g.oneIn(50): // lost frames, up to two windows
		h.next += g.rng.Uint32N(2 * 2 * wire.DefaultWindow)
	case g.oneIn(5000): // far ahead: the numbers wrap in time
		h.next += g.rng.Uint32N(1 << 31)
	}
	p := g.fresh(f, h.next)
	h.next++
	if len(h.payloads) < remembered {
		h.payloads = append(h.payloads, p)
	} else {
		h.payloads[g.rng.IntN(remembered)] = p
	}
	return p
}

// fresh returns a new payload of a flow.
func (g *Generator) fresh(f flow, seq uint32) []byte {
	job := g.jobs[f.job]
	scales := 40
	if job.Arithmetic == aggregator.Fixed && job.Workers > 0 {
		scales = 4
	}
	switch {
	case g.oneIn(scales):
		return g.scale(f, seq)
	case job.Mode == aggregator.Sync:
		if g.oneIn(8) { // a number that most likely belongs to another group
			seq -= 1 + g.rng.Uint32N(4)
		}
		return g.contribution(f, seq, g.rng.IntN(groups(job)))
	}
	p := g.hot(f, seq)
	if g.oneIn(2) {
		p[1] |= byte([...]wire.Flags{wire.FlagQuiet, wire.FlagCover, wire.FlagCover | wire.FlagQuiet}[g.rng.IntN(3)])
	}
	return p
}

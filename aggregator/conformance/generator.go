// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"math/rand/v2"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/wire"
)

// Generator makes random frames for the jobs and senders of [Setup]: mostly valid ones,
// repetitions, and frames with every fault that a receiver must detect. The same seed gives the
// same frames.
//
// In jobs with rounds, senders contribute in random order, so that rounds complete slowly and many
// contributions are too early. Of the answers it needs to see, by [Generator.Hear], only those to
// all senders of a job in mode acked, whose rounds hardly end otherwise.
type Generator struct {
	rng     *rand.Rand
	jobs    []aggregator.JobConfig             // complete, in their current epochs
	paged   bool                               // one of them has several pages
	senders [][Senders]aggregator.SenderConfig // by job, as currently admitted
	epochs  []uint16                           // epoch of the next admission, by job
	flows   map[flow]*history
	scales  []negotiation // by job
	heard   [][]heard     // by job and group
	ports   *rand.Rand
	port    int // port of the last frame
	buf     [4096]byte
}

// longest is the length of the longest frames of a generator: an XDP program in native mode sees
// longer ones only in part, both in a test run and on a veth pair.
const longest = 3500 + 14

// oddPort is the UDP port of the last sender of every job. The others have the
// aggregator's.
const oddPort = 40_000

type flow struct{ job, sender int }

// history is the number of payloads kept for repetition.
type history struct {
	next     uint32
	payloads [][]byte
}

const remembered = 64

// NewGenerator returns a generator for a seed and some jobs, or, without jobs, for [Jobs].
func NewGenerator(seed uint64, jobs ...aggregator.JobConfig) *Generator {
	if len(jobs) == 0 {
		jobs = Jobs
	}
	g := &Generator{
		rng: rand.New(rand.NewPCG(seed, 0)), ports: rand.New(rand.NewPCG(seed, 1)), flows: make(map[flow]*history),
		scales: make([]negotiation, len(jobs)), heard: make([][]heard, len(jobs)),
		senders: make([][Senders]aggregator.SenderConfig, len(jobs)),
	}
	for k, j := range jobs {
		j, err := j.Complete()
		if err != nil {
			panic(err) // a test's own table
		}
		g.jobs = append(g.jobs, j)
		g.paged = g.paged || j.Pages() > 1
		g.epochs = append(g.epochs, j.Epoch)
		g.restart(k)
	}
	return g
}

// restart restarts one of Jobs, by its index, with the next epochs. Frames of old epochs still
// arrive sometimes.
func (g *Generator) restart(job int) {
	g.jobs[job].Epoch = g.epochs[job]
	if g.jobs[job].Workers > 0 {
		g.epochs[job]++
	}
	for i := range Senders {
		g.readmit(job, i)
	}
	g.scales[job] = negotiation{}
	g.heard[job] = make([]heard, groups(g.jobs[job]))
}

// readmit starts a new admission of a sender of one of Jobs: its numbers start again, in the next
// epoch, or in the job's epoch if it has rounds.
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

// source returns the sender's endpoint of a flow's frames.
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

// Port returns the ingress port of Frame's last frame: 0 or 1.
func (g *Generator) Port() int { return g.port }

// Valid returns the next new HOT frame of a sender to one of Jobs, by its index, without faults.
// The frames of a job with rounds go to one group of slots after the other, and are refused unless
// the other senders keep pace. It is valid until the next call.
func (g *Generator) Valid(job, sender int) []byte {
	f := flow{job, sender}
	h := g.history(f)
	var p []byte
	if g.jobs[job].Mode.HasRounds() {
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

// payload returns a valid payload of a flow: a new one, a repetition, or one that has the number of
// an earlier one and other contents, which tells what a receiver knows by the number alone.
func (g *Generator) payload(f flow) []byte {
	h := g.history(f)
	if len(h.payloads) > 0 && g.oneIn(6) {
		p := h.payloads[g.rng.IntN(len(h.payloads))]
		if g.oneIn(4) {
			return g.fresh(f, seqOf(p))
		}
		if g.oneIn(2) {
			wire.MarkRetx(p)
		}
		return p
	}
	switch {
	case g.oneIn(50): // lost frames, up to two windows
		h.next += g.rng.Uint32N(2 * 2 * wire.DefaultWindow)
	case g.oneIn(5000): // far ahead, so that the numbers wrap in time
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
	case job.Mode.HasRounds():
		group := g.rng.IntN(groups(job))
		if job.Mode == aggregator.Acked && g.isTaking(f.job, group) {
			return g.taken(f, seq, group)
		}
		if g.oneIn(8) { // a number that most likely belongs to another group
			seq -= 1 + g.rng.Uint32N(4)
		}
		return g.ask(g.contribution(f, seq, group))
	}
	return g.ask(g.hot(f, seq))
}

// ask gives half of the HOT payloads the flags that say which answer their sender needs.
func (g *Generator) ask(p []byte) []byte {
	if g.oneIn(2) {
		p[1] |= byte([...]wire.Flags{wire.FlagQuiet, wire.FlagCover, wire.FlagCover | wire.FlagQuiet}[g.rng.IntN(3)])
	}
	return p
}

// seqOf returns the number of a payload.
func seqOf(payload []byte) uint32 {
	h, err := wire.ParseHeader(payload)
	if err != nil {
		panic(err) // a generator's own
	}
	return h.Seq
}

// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// host is a place in the network; its processes run one after another.
type host struct {
	name    string
	at      wire.Endpoint
	link    *simLink // of the process
	paused  bool
	since   time.Time // start of the pause
	resumed time.Time // end of the last pause
	slept   time.Duration
	pauses  int
	// timeouts is the number of doubling timeouts in its pauses.
	timeouts int
	down     bool // its machine has no power
}

func (h *host) gone() bool { return h.link != nil && h.link.crashed }

// network carries frames between the hosts of a life.
type network struct {
	s      *sim
	hosts  map[netip.AddrPort]*host
	cut    map[[2]*host]int // active one-way partitions
	bursts map[[2]*host]int // number of frames still to lose
	count  Traffic

	repeated int // repeated frames of workers
}

// Traffic counts frames, including retransmissions and answers.
type Traffic struct {
	Frames     uint64 `json:"frames"` // sent by a link
	Lost       uint64 `json:"lost"`
	Duplicated uint64 `json:"duplicated"`
	Reordered  uint64 `json:"reordered"`
	Late       uint64 `json:"late"`
	Corrupted  uint64 `json:"corrupted"`
	Cut        uint64 `json:"cut"`     // lost to partitions
	Forged     uint64 `json:"forged"`  // frames and answers of a stranger
	Overrun    uint64 `json:"overrun"` // the receiver's queue was full, or there was no receiver
}

func (s *sim) newHost(name, at string) *host {
	a := netip.MustParseAddrPort(at)
	h := &host{name: name, at: wire.Endpoint{IP: a.Addr(), Port: a.Port()}}
	s.net.hosts[a] = h
	return h
}

// carry transports a frame that leaves a host. The network owns the payload.
func (n *network) carry(from *host, to wire.Endpoint, payload []byte) {
	n.count.Frames++
	if h, err := wire.ParseHeader(payload); err == nil && h.Flags&wire.FlagRetx != 0 && !n.s.serves(from) {
		n.repeated++
	}
	n.s.cluster.moment(byFrames)
	dst := n.hosts[to.AddrPort()]
	s, p, rng := n.s, &n.s.plan, n.s.netRand
	// Always the same number of draws, so that disabling one kind does not change the others'
	// effects on this frame.
	lost := n.burst(from, dst)
	if rng.Float64() < p.loss {
		lost = true
	}
	duplicated := rng.Float64() < p.duplicate
	late := rng.Float64() < p.late
	corrupted := rng.Float64() < p.corrupt
	first, second := n.delay(), n.delay()
	far := time.Millisecond<<rng.IntN(11) + time.Duration(rng.IntN(1000_000))
	bit := rng.IntN(8 * (len(payload) + wire.EnvelopeLen))
	hostile, ahead := rng.Float64() < p.hostile, uint32(rng.IntN(8))
	if s.healed {
		hostile = false
		lost, duplicated, late, corrupted = false, false, false, false
	}
	s.ledger.leaves(from, dst, payload, duplicated || late)
	s.cluster.books().leaves(from, dst, payload)
	switch {
	case dst == nil:
		n.count.Overrun++
		return
	case n.cut[[2]*host{from, dst}] > 0:
		n.count.Cut++
		s.log("cut", from, dst, payload)
		return
	case lost:
		n.count.Lost++
		s.log("lost", from, dst, payload)
		return
	}
	whole := payload
	if hostile {
		n.forge(from, dst, payload, ahead)
	}
	if corrupted {
		n.count.Corrupted++
		payload = damage(from.at, dst.at, payload, bit)
	}
	if payload != nil {
		s.quietly(first, func() { n.arrive(from, dst, payload) })
	}
	if duplicated {
		n.count.Duplicated++
		s.quietly(second, func() { n.arrive(from, dst, whole) })
	}
	if late {
		n.count.Late++
		s.quietly(far, func() { n.arrive(from, dst, whole) })
	}
}

// burst decides whether a frame is in a burst of losses: often all frames in flight except one.
func (n *network) burst(from, to *host) bool {
	p, rng := &n.s.plan, n.s.netRand
	begins, whole, some := rng.Float64() < p.burst, rng.IntN(2) == 0, 1+rng.IntN(p.window)
	way := [2]*host{from, to}
	switch {
	case n.bursts[way] > 0:
		n.bursts[way]--
		return true
	case begins && whole:
		n.bursts[way] = p.window - 2
	case begins:
		n.bursts[way] = some - 1
	}
	return begins
}

// delay draws the delay of a copy.
func (n *network) delay() time.Duration {
	p, rng := &n.s.plan, n.s.netRand
	d := time.Duration(5000 + rng.IntN(1000))
	slow, extra := rng.Float64() < p.reorder, time.Duration(rng.Int64N(int64(p.delay)))
	if slow && !n.s.healed {
		n.count.Reordered++
		d += extra
	}
	return d
}

// damage flips one bit of a frame, and returns the payload that a receiver gets: none if it detects
// the damage.
func damage(src, dst wire.Endpoint, payload []byte, bit int) []byte {
	e, err := wire.NewEnvelope(src, dst)
	if err != nil {
		panic(err)
	}
	frame := make([]byte, e.Len()+len(payload))
	copy(e.Payload(frame, len(payload)), payload)
	e.Seal(frame)
	frame[bit/8] ^= 1 << (bit % 8)
	p, err := wire.ParseFrame(frame, dst.Port)
	if err != nil || p.Dst.AddrPort() != dst.AddrPort() {
		return nil
	}
	return p.Payload
}

// strange is the port of a program on a host of the job that does not belong to the job.
const strange = 6666

// forge lets strangers see a sent frame, and so its sender's numbers, and send a different one to
// its receiver before it arrives, and an answer to its sender.
func (n *network) forge(from, to *host, payload []byte, ahead uint32) {
	h, err := wire.ParseHeader(payload)
	if err != nil || !counted(h.Type) {
		return
	}
	n.count.Forged += 2
	answer := make([]byte, wire.HeaderLen)
	ack := h
	ack.Type, ack.Flags = wire.TypeAck, 0
	ack.Put(answer)
	n.s.quietly(1, func() { n.arriveFrom(wire.Endpoint{IP: to.at.IP, Port: strange}, to, from, answer) })
	frame := bytes.Clone(payload)
	h.Seq += ahead
	h.Put(frame)
	src := wire.Endpoint{IP: from.at.IP, Port: strange}
	if c := n.s.cluster; c != nil && c.neighbour != nil && h.Seq%2 == 0 {
		src.IP = c.neighbour.cfg.Workers[0].Address // of another job
	}
	n.s.quietly(2, func() { n.arriveFrom(src, from, to, frame) })
}

// arrive puts a payload into the queue of the process at its destination.
func (n *network) arrive(from, to *host, payload []byte) { n.arriveFrom(from.at, from, to, payload) }

func (n *network) arriveFrom(src wire.Endpoint, from, to *host, payload []byte) {
	l := to.link
	if l == nil || l.crashed || l.closed.Load() || len(l.inbox) >= n.s.plan.inbox {
		n.count.Overrun++
		n.s.log("overrun", from, to, payload)
		return
	}
	n.s.log("arrives", from, to, payload)
	mem := make([]byte, len(payload), n.s.plan.payload)
	copy(mem, payload)
	l.inbox = append(l.inbox, link.Packet{Packet: wire.Packet{Src: src, Dst: to.at, Payload: mem}})
}

func (t *Traffic) add(o Traffic) {
	t.Frames += o.Frames
	t.Lost += o.Lost
	t.Duplicated += o.Duplicated
	t.Reordered += o.Reordered
	t.Late += o.Late
	t.Corrupted += o.Corrupted
	t.Cut += o.Cut
	t.Forged += o.Forged
	t.Overrun += o.Overrun
}

package simulation

import (
	"net/netip"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// host is a place in the network, where one process after another runs.
type host struct {
	name   string
	at     wire.Endpoint
	link   *simLink // of the process
	paused bool
	down   bool // its machine has no power
}

func (h *host) gone() bool { return h.link != nil && h.link.crashed }

// network carries frames between the hosts of a life.
type network struct {
	s      *sim
	hosts  map[netip.AddrPort]*host
	cut    map[[2]*host]int // one-way partitions that hold
	bursts map[[2]*host]int // frames that are still to be lost
	count  Traffic
}

// Traffic counts frames, retransmissions and answers among them.
type Traffic struct {
	Frames     uint64 // that left a link
	Lost       uint64
	Duplicated uint64
	Reordered  uint64
	Late       uint64
	Corrupted  uint64
	Cut        uint64 // lost to partitions
	Overrun    uint64 // found the queue of their receiver full, or none
}

func (s *sim) newHost(name, at string) *host {
	a := netip.MustParseAddrPort(at)
	h := &host{name: name, at: wire.Endpoint{IP: a.Addr(), Port: a.Port()}}
	s.net.hosts[a] = h
	return h
}

// carry takes a frame that leaves a host. The payload is the network's.
func (n *network) carry(from *host, to wire.Endpoint, payload []byte) {
	n.count.Frames++
	n.s.cluster.moment(byFrames)
	dst := n.hosts[to.AddrPort()]
	s, p, rng := n.s, &n.s.plan, n.s.netRand
	// Always the same number of draws, so that switching one kind off
	// leaves what the others do to this frame as it is.
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
	if s.healed {
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
	if corrupted {
		n.count.Corrupted++
		payload = damage(from.at, dst.at, payload, bit)
	}
	if payload != nil {
		s.after(first, func() { n.arrive(from, dst, payload) })
	}
	if duplicated {
		n.count.Duplicated++
		s.after(second, func() { n.arrive(from, dst, whole) })
	}
	if late {
		n.count.Late++
		s.after(far, func() { n.arrive(from, dst, whole) })
	}
}

// burst draws whether a frame is among those that are lost one after another: often all
// that may be under way but one.
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

// delay draws how long a copy is on its way.
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

// damage turns one bit of the frame around a payload over, and returns the payload
// that a receiver takes out of what is left: none if it sees the damage.
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

// arrive puts a payload into the queue of the process that runs at its destination.
func (n *network) arrive(from, to *host, payload []byte) {
	l := to.link
	if l == nil || l.crashed || l.closed.Load() || len(l.inbox) >= n.s.plan.inbox {
		n.count.Overrun++
		n.s.log("overrun", from, to, payload)
		return
	}
	n.s.log("arrives", from, to, payload)
	mem := make([]byte, len(payload), n.s.plan.payload)
	copy(mem, payload)
	l.inbox = append(l.inbox, link.Packet{Packet: wire.Packet{Src: from.at, Dst: to.at, Payload: mem}})
}

func (t *Traffic) add(o Traffic) {
	t.Frames += o.Frames
	t.Lost += o.Lost
	t.Duplicated += o.Duplicated
	t.Reordered += o.Reordered
	t.Late += o.Late
	t.Corrupted += o.Corrupted
	t.Cut += o.Cut
	t.Overrun += o.Overrun
}

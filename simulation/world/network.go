// SPDX-License-Identifier: Apache-2.0

package world

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// way is a direction between two hosts.
type way struct{ from, to *Host }

// order records in which order the frames of a way arrive.
type order struct {
	left      uint64 // frames that have left
	newest    uint64 // the newest of them that has arrived
	overtaken int    // frames that have arrived after a newer one
}

// Network carries frames between the hosts of a world.
type Network struct {
	w         *World
	rng       *rand.Rand
	hosts     map[netip.AddrPort]*Host
	addresses map[netip.Addr]*Host
	order     []*Host     // in which they were added
	cut       map[way]int // active one-way partitions
	bursts    map[way]int // number of frames still to lose
	holds     map[way]*hold
	orders    map[way]*order
	count     Traffic
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

// Add adds the traffic of another world.
func (t *Traffic) Add(o Traffic) {
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

func newNetwork(w *World) *Network {
	return &Network{
		w: w, rng: w.options.Seed.Stream(streamNetwork),
		hosts: map[netip.AddrPort]*Host{}, addresses: map[netip.Addr]*Host{},
		cut: map[way]int{}, bursts: map[way]int{}, holds: map[way]*hold{},
		orders: map[way]*order{},
	}
}

// Traffic returns what the network has carried so far.
func (n *Network) Traffic() Traffic { return n.count }

// HostOf returns the host with an address, nil if there is none.
func (n *Network) HostOf(a netip.Addr) *Host { return n.addresses[a] }

// Partition makes all that one host sends to another vanish, until the same call of Rejoin.
func (n *Network) Partition(from, to *Host) { n.cut[way{from, to}]++ }

// Rejoin ends a partition.
func (n *Network) Rejoin(from, to *Host) { n.cut[way{from, to}]-- }

// Connect ends all partitions.
func (n *Network) Connect() { clear(n.cut) }

// Reaches reports whether what one host sends to another is not cut off now.
func (n *Network) Reaches(from, to *Host) bool { return n.cut[way{from, to}] <= 0 }

// carry transports a frame that leaves a host. The network owns the payload.
func (n *Network) carry(from *Host, to wire.Endpoint, payload []byte) {
	n.count.Frames++
	dst := n.hosts[to.AddrPort()]
	w, c, rng := n.w, &n.w.options.Conditions, n.rng
	// Always the same number of draws, so that disabling one kind does not change the others'
	// effects on this frame.
	lost := n.burst(from, dst)
	if rng.Float64() < c.Loss {
		lost = true
	}
	duplicated := rng.Float64() < c.Duplicate
	late := rng.Float64() < c.Late
	corrupted := rng.Float64() < c.Corrupt
	first, second := n.delay(), n.delay()
	far := time.Millisecond<<rng.IntN(11) + time.Duration(rng.IntN(1000_000))
	bit := rng.IntN(8 * (len(payload) + wire.EnvelopeLen))
	hostile, ahead := rng.Float64() < c.Hostile, uint32(rng.IntN(8))
	if w.healed {
		hostile = false
		lost, duplicated, late, corrupted = false, false, false, false
	}
	on := way{from, dst}
	held := n.holds[on]
	w.options.Life.Leaves(from, dst, payload, duplicated || late || held != nil)
	switch {
	case dst == nil:
		n.count.Overrun++
		return
	case !n.Reaches(from, dst):
		n.count.Cut++
		w.traceFrame("cut", from, dst, payload)
		return
	case lost:
		n.count.Lost++
		w.traceFrame("lost", from, dst, payload)
		return
	case held != nil:
		held.frames = append(held.frames, payload)
		w.traceFrame("held", from, dst, payload)
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
		arrived := n.number(on)
		w.quietly(first, func() { arrived(); n.arrive(from, dst, payload) })
	}
	if duplicated {
		n.count.Duplicated++
		w.quietly(second, func() { n.arrive(from, dst, whole) })
	}
	if late {
		n.count.Late++
		w.quietly(far, func() { n.arrive(from, dst, whole) })
	}
}

// Overtaken returns how many frames from one host to another have arrived after one that left
// later. Copies, and frames that were held, do not count.
func (n *Network) Overtaken(from, to *Host) int {
	if o := n.orders[way{from, to}]; o != nil {
		return o.overtaken
	}
	return 0
}

// number gives the next frame of a way its number, and returns what records its arrival.
func (n *Network) number(on way) func() {
	o := n.orders[on]
	if o == nil {
		o = new(order)
		n.orders[on] = o
	}
	o.left++
	number := o.left
	return func() {
		if number < o.newest {
			o.overtaken++
		}
		o.newest = max(o.newest, number)
	}
}

// burst decides whether a frame is in a burst of losses: often all frames in flight except one.
func (n *Network) burst(from, to *Host) bool {
	c, rng := &n.w.options.Conditions, n.rng
	longest := cmp.Or(c.Longest, c.Window)
	begins, whole, some := rng.Float64() < c.Burst, rng.IntN(2) == 0, 1+rng.IntN(longest)
	on := way{from, to}
	switch {
	case n.bursts[on] > 0:
		n.bursts[on]--
		return true
	case begins && whole:
		n.bursts[on] = longest - 2
	case begins:
		n.bursts[on] = some - 1
	}
	return begins
}

// delay draws the delay of a copy.
func (n *Network) delay() time.Duration {
	c, rng := &n.w.options.Conditions, n.rng
	d := time.Duration(5000 + rng.IntN(1000))
	slow, extra := rng.Float64() < c.Reorder, time.Duration(rng.Int64N(int64(c.Delay)))
	if slow && !n.w.healed {
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

// arrive puts a payload into the queue of the process at its destination.
func (n *Network) arrive(from, to *Host, payload []byte) { n.arriveFrom(from.at, from, to, payload) }

func (n *Network) arriveFrom(src wire.Endpoint, from, to *Host, payload []byte) {
	l, c := to.link, &n.w.options.Conditions
	if l == nil || l.crashed || l.closed.Load() || len(l.inbox) >= c.Inbox {
		n.count.Overrun++
		n.w.traceFrame("overrun", from, to, payload)
		return
	}
	n.w.traceFrame("arrives", from, to, payload)
	mem := make([]byte, len(payload), c.Payload)
	copy(mem, payload)
	l.inbox = append(l.inbox, link.Packet{Packet: wire.Packet{Src: src, Dst: to.at, Payload: mem}})
}

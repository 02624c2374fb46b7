// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"time"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/retransmit"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/wire"
)

// plan is a seed's choices for a life before it begins.
type plan struct {
	kinds   Kinds
	workers int
	dim     int
	hot     int // rows that are pushed
	pages   int // of the hot set
	cold    int // rows
	layout  packer.Layout
	stripes int
	payload int // largest of a link, in bytes
	window  int // frames
	flow    retransmit.Config
	calls   int  // of each caller
	callers int  // of each worker
	rows    int  // of a batch at most
	tickets int  // that a caller does not wait for
	hasty   bool // callers seldom wait
	exp     int  // of the unit of all sums
	full    int  // rows of a server's open step at most; 0: any number
	sample  int  // of telemetry
	codec   codec.Config

	positive int           // not 0: all gradients are
	trouble  time.Duration // duration of the faults

	loss, burst, duplicate, reorder, late, corrupt, hostile float64

	delay   time.Duration // the most that reordering adds
	inbox   int           // frames that wait for a process
	harvest time.Duration // the longest time between two
	broken  float64       // of a harvest's stream
}

// Streams of random numbers: decisions of one do not change the draws of another.
const (
	streamPlan    = 0
	streamTrouble = world.FirstStream + iota - 1
	streamHarvest
	streamCaller // and those after it
)

func (o Options) random(stream uint64) *rand.Rand { return world.Seed(o.Seed).Stream(stream) }

// named returns random numbers that depend only on a name.
func (o Options) named(name string) *rand.Rand { return world.Seed(o.Seed).Named(name) }

// worldConditions are the plan's for the network and the links.
func (p *plan) worldConditions() world.Conditions {
	return world.Conditions{
		Loss: p.loss, Burst: p.burst, Duplicate: p.duplicate, Reorder: p.reorder, Late: p.late, Corrupt: p.corrupt,
		Hostile: p.hostile, Delay: p.delay, Window: p.window, Payload: p.payload, Inbox: p.inbox,
		ShortQueues: p.kinds&Queue != 0,
	}
}

// fewKinds draws the kinds of trouble of a life: one or two in one life in four, all in the others.
// Some events are rare with other kinds of trouble, and some checks are possible only without them;
// see Groce et al., Swarm Testing, ISSTA 2012.
func (o Options) fewKinds(life Life) Kinds {
	met := All | Hostile
	switch life {
	case Clusters:
		met = ClusterAll &^ (Evict | Cancel | Silence | Neighbour | Outage)
	case Reducers, Rings:
		met = All&^(Evict|Cancel|Silence) | Hostile
	case Agents:
		met = All&^(Evict|Cancel|Silence) | Reset | Stop
	}
	var kinds []Kinds
	for k := Kinds(1); k <= ClusterAll; k <<= 1 {
		if met&k != 0 {
			kinds = append(kinds, k)
		}
	}
	rng := o.named("few")
	one, other := kinds[rng.IntN(len(kinds))], kinds[rng.IntN(len(kinds))]
	switch rng.IntN(8) {
	case 0:
		return one
	case 1:
		return one | other
	}
	return ClusterAll
}

// newPlan draws the plan of a life.
func newPlan(rng *rand.Rand, o Options, life Life) plan {
	p := plan{
		workers: 1 + rng.IntN(3),
		dim:     1 + rng.IntN(3),
		hot:     1 + rng.IntN(30),
		cold:    1 + rng.IntN(30),
		layout:  packer.Layout(rng.IntN(2)),
		stripes: 1 + rng.IntN(3),
		window:  1 << (2 + rng.IntN(4)),
		calls:   10 + rng.IntN(30),
		callers: 1 + rng.IntN(2),
		rows:    1 + rng.IntN(40),
		trouble: time.Duration(20+rng.IntN(400)) * time.Millisecond,
		delay:   time.Duration(20+rng.IntN(2000)) * time.Microsecond,
		harvest: time.Duration(1+rng.IntN(20)) * time.Millisecond,
		inbox:   4096,
		tickets: 8,
		sample:  [...]int{0, 1, 8, 64}[o.named("sample").IntN(4)],
	}
	if rng.IntN(12) == 0 { // its flows fill the largest window, and wrap around the filter
		p.workers, p.window, p.stripes = 1, wire.DefaultWindow, 1
		p.calls, p.rows, p.tickets, p.hasty = 100, 1000, 60, true
	}
	if o.named("long").IntN(16) == 0 { // frames beyond an MTU of 1500, which the rows of many calls fill
		p.stripes, p.rows = wire.MaxStripes, p.rows+400
	}
	p.pages = o.drawPages()
	p.exp = ps.DefaultExp
	if rng := o.named("tight"); rng.IntN(4) == 0 { // some sums, and late in the life some gradients, are out of range
		p.exp = -72 + rng.IntN(4)
	}
	if o.named("codec").IntN(3) == 0 {
		p.codec = losslessCodec
	}
	if rng := o.named("full"); rng.IntN(8) == 0 {
		p.full = 1 + rng.IntN(6)
	}
	if o.Cut.Workers > 0 {
		p.workers = min(p.workers, o.Cut.Workers)
	}
	p.calls = max(1, p.calls>>o.Cut.Halves)
	p.payload = max(wire.HotLen(p.stripes), 200) + rng.IntN(300)
	p.kinds = o.Kinds & (o.fewKinds(life) &^ Outage) // a life draws by itself whether it has outages
	for k := Kinds(1); k <= Hostile; k <<= 1 {
		// Most lives have only some kinds of trouble, so that one does not hide the effects of
		// another.
		if rng.IntN(3) == 0 {
			p.kinds &^= k
		}
	}
	draw := func(k Kinds, most float64) float64 {
		x := rng.Float64() * most
		if p.kinds&k == 0 {
			return 0
		}
		return x
	}
	p.loss, p.duplicate, p.reorder = draw(Loss, 0.2), draw(Duplicate, 0.2), draw(Reorder, 0.3)
	p.late, p.corrupt, p.broken = draw(Late, 0.05), draw(Corrupt, 0.1), draw(Loss, 0.5)
	p.hostile = draw(Hostile, 0.2)
	p.burst = draw(Loss, 0.01)
	if rng.IntN(2) == 0 {
		p.loss = 0 // and bursts only
	}
	if p.kinds&Queue != 0 {
		p.inbox = 1 + rng.IntN(2*p.window)
	}
	p.flow.Size = p.window
	if p.kinds&Silence != 0 {
		p.flow.Silence = time.Duration(30+rng.IntN(300)) * time.Millisecond
	}
	return p
}

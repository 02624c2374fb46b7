package hotset

import (
	"iter"
	"slices"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/placement"
	"github.com/libra-ina/libra/wire"
)

const (
	registers = wire.Lanes // m
	capacity  = wire.Lanes // pairs that fit the 192 bytes of libra.txt §3.4
)

// hotSetOf returns the hot set that the packet and lane studies use: the
// paper's 30,000 parameters or, of a log that has no more than that, those of
// the trade-off rule with the paper's step.
func hotSetOf(l *trainingLog, c Config) (*packer.HotSet, error) {
	if len(l.full.Counts) > topParameters {
		return l.full.Top(topParameters, 1, packer.Meta{Rate: 1})
	}
	return packer.Principle{MinGain: c.MinGain, MemoryShare: 1}.HotSet(l.full, 1, packer.Meta{Rate: 1})
}

// batches yields the keys of mini-batches of a number of consecutive rows. The
// slice is valid during the call.
func (l *trainingLog) batches(rows int, combined bool) iter.Seq[[]uint64] {
	return func(yield func([]uint64) bool) {
		var keys []uint64
		for first := 0; first < l.rows(); first += rows {
			keys = keys[:0]
			for i := first; i < min(first+rows, l.rows()); i++ {
				keys = append(keys, l.row(i)...)
			}
			if combined {
				keys = combine(keys)
			}
			if !yield(keys) {
				return
			}
		}
	}
}

// combine returns the distinct keys in ascending order, in place.
func combine(keys []uint64) []uint64 {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// packets runs the experiment of libra.txt §5.4 on one log.
func packets(l *trainingLog, c Config, combined bool) ([]Packets, error) {
	hot, err := hotSetOf(l, c)
	if err != nil {
		return nil, err
	}
	random, err := placement.NewRandom(hot.Len(), registers, c.Seed)
	if err != nil {
		return nil, err
	}
	orchestrator, err := placement.NewOrchestrator(registers, capacity)
	if err != nil {
		return nil, err
	}
	aligned, err := packer.New(packer.Config{HotSet: hot, Layout: packer.LaneAligned})
	if err != nil {
		return nil, err
	}
	dense, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Dense})
	if err != nil {
		return nil, err
	}
	var tallies = []struct {
		method Method
		tally
	}{
		{RandomInOrder, newTally(random)},
		{HeatInOrder, newTally(placement.Heat(registers))},
		{HeatAlgorithm1, newTally(placement.Heat(registers))},
		{LaneAligned, newTally(placement.Heat(registers))},
		{Dense, newTally(placement.Heat(registers))},
	}
	count := 0
	var gradients []placement.Gradient
	for keys := range l.batches(c.BatchRows, combined) {
		count++
		gradients = gradients[:0]
		for _, key := range keys {
			if rank, ok := hot.Rank(key); ok {
				gradients = append(gradients, placement.Gradient{Rank: rank})
			}
		}
		for packet := range slices.Chunk(gradients, capacity) {
			tallies[0].add(packet)
			tallies[1].add(packet)
		}
		packed := orchestrator.Package(gradients)
		for i := range packed.Len() {
			tallies[2].add(packed.At(i))
		}
		zeros := make([]float32, len(keys))
		for i, p := range []*packer.Packer{aligned, dense} {
			layout := []packer.Layout{packer.LaneAligned, packer.Dense}[i]
			each := func(payload []byte) error { return eachStripe(payload, layout, tallies[3+i].add) }
			if _, err := pack(p, keys, zeros, each); err != nil {
				return nil, err
			}
		}
	}
	results := make([]Packets, len(tallies))
	for i, t := range tallies {
		results[i] = Packets{
			Log: l.name, Combined: combined, Method: t.method, Hot: hot.Len(), Batches: count,
			Pairs: t.pairs, Packets: t.packets, Worst: t.worst,
		}
		if t.packets > 0 {
			results[i].Recirculations = float64(t.recirculations) / float64(t.packets)
			results[i].None = float64(t.none) / float64(t.packets)
		}
	}
	return results, nil
}

// tally counts packets and what they cost a switch.
type tally struct {
	placement placement.Placement
	seen      []uint32

	packets, pairs, recirculations, worst, none int
}

func newTally(p placement.Placement) tally {
	return tally{placement: p, seen: make([]uint32, p.Registers())}
}

func (t *tally) add(packet []placement.Gradient) {
	n := placement.Recirculations(packet, t.placement, t.seen)
	t.packets++
	t.pairs += len(packet)
	t.recirculations += n
	t.worst = max(t.worst, n)
	if n == 0 {
		t.none++
	}
}

// pack calls each with the payloads of a batch's hot frames.
func pack(p *packer.Packer, keys []uint64, grads []float32, each func(payload []byte) error) (packer.Sent, error) {
	var payload [wire.MaxPayload]byte
	err := p.Begin(keys, grads)
	for err == nil && p.Next() == wire.TypeHot {
		var filled []byte
		if filled, err = p.Fill(payload[:]); err == nil {
			err = each(filled)
		}
	}
	return p.Sent(), err
}

// eachStripe takes every stripe of a payload for a packet.
func eachStripe(payload []byte, layout packer.Layout, packet func([]placement.Gradient)) error {
	n, err := wire.StripeCount(payload)
	if err != nil {
		return err
	}
	for i := range n {
		stripe := wire.StripeAt(payload, i)
		var pairs []placement.Gradient
		for lane := range wire.Lanes {
			if stripe.Mask()>>lane&1 != 0 {
				pairs = append(pairs, placement.Gradient{Rank: layout.Rank(lane, stripe.Slot(lane)), Value: stripe.Value(lane)})
			}
		}
		packet(pairs)
	}
	return nil
}

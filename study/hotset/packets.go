// SPDX-License-Identifier: Apache-2.0

package hotset

import (
	"iter"
	"slices"

	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/packer/placement"
	"github.com/libra-ina/libra/wire"
)

// Method is a way to place hot parameters and to pack their gradients.
type Method string

// The methods of the packet study.
const (
	RandomInOrder  Method = "random, in order"
	HeatInOrder    Method = "heat-based, in order"
	HeatAlgorithm1 Method = "heat-based, Algorithm 1"
	LaneAligned    Method = "lane-aligned"
	Dense          Method = "dense"
)

var methods = []Method{RandomInOrder, HeatInOrder, HeatAlgorithm1, LaneAligned, Dense}

// Packets is how one method packs the hot gradients of one log's mini-batches, for 22 registers and
// packets of 22 pairs.
type Packets struct {
	Log string `json:"log"`
	// Combined: each key once a batch, in ascending order, as a worker pushes
	// it. Otherwise every update of a row is a pair, in the order of the log.
	Combined bool   `json:"combined"`
	Method   Method `json:"method"`
	Hot      int    `json:"hot"`     // parameters in the hot set
	Batches  int    `json:"batches"` // mini-batches that were packed
	Pairs    int    `json:"pairs"`   // hot pairs in them
	Packets  int    `json:"packets"`
	// Recirculations is the mean over the packets, Worst the maximum.
	Recirculations float64 `json:"recirculations"`
	Worst          int     `json:"worst"`
	// None is the share of packets that take one pass only.
	None float64 `json:"none"`
}

// Unfilled returns the share of places in the packets that carry no pair.
func (p Packets) Unfilled() float64 {
	if p.Packets == 0 {
		return 0
	}
	return 1 - float64(p.Pairs)/float64(p.Packets*capacity)
}

const (
	registers = wire.Lanes // m
	capacity  = wire.Lanes // pairs that fit the 192 bytes of the paper's §3.4
)

// hotSetOf returns the hot set that the packet and lane studies use: the
// paper's 30,000 parameters or, of a log that has no more than that, those of
// the trade-off rule with the paper's step.
func hotSetOf(l *trainingLog, c Config) (*packer.HotSet, error) {
	if len(l.full.Counts) > topParameters {
		return l.full.Top(topParameters, 1, packer.Meta{Rate: 1})
	}
	return heat.Principle{MinGain: c.MinGain, MemoryShare: 1}.HotSet(l.full, 1, packer.Meta{Rate: 1})
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

// packing is a method at work: where its parameters are, and how it packs a batch
// of keys, of which hot ones have gradients.
type packing struct {
	placement placement.Placement
	pack      func(keys []uint64, hot []placement.Gradient, packet func([]placement.Gradient)) error
}

func newPacking(m Method, hot *packer.HotSet, seed uint64) (p packing, err error) {
	p.placement = placement.Heat(registers)
	p.pack = inOrder
	switch m {
	case RandomInOrder:
		p.placement, err = placement.NewRandom(hot.Len(), registers, seed)
	case HeatAlgorithm1:
		var o *placement.Orchestrator
		o, err = placement.NewOrchestrator(registers, capacity)
		p.pack = func(_ []uint64, hot []placement.Gradient, packet func([]placement.Gradient)) error {
			packed := o.Package(hot)
			for i := range packed.Len() {
				packet(packed.At(i))
			}
			return nil
		}
	case LaneAligned:
		p.pack, err = inStripes(hot, packer.LaneAligned)
	case Dense:
		p.pack, err = inStripes(hot, packer.Dense)
	}
	return p, err
}

func inOrder(_ []uint64, hot []placement.Gradient, packet func([]placement.Gradient)) error {
	for chunk := range slices.Chunk(hot, capacity) {
		packet(chunk)
	}
	return nil
}

// inStripes packs as workers do, and takes every stripe for a packet.
func inStripes(hot *packer.HotSet, layout packer.Layout) (func([]uint64, []placement.Gradient,
	func([]placement.Gradient)) error, error) {
	p, err := packer.New(packer.Config{HotSet: hot, Layout: layout})
	return func(keys []uint64, _ []placement.Gradient, packet func([]placement.Gradient)) error {
		_, err := pack(p, keys, make([]float32, len(keys)), func(payload []byte) error {
			return eachStripe(payload, layout, packet)
		})
		return err
	}, err
}

// packets runs the experiment of the paper's §5.4 on one log.
func packets(l *trainingLog, hot *packer.HotSet, c Config, combined bool) ([]Packets, error) {
	results := make([]Packets, len(methods))
	for i, method := range methods {
		p, err := newPacking(method, hot, c.Seed)
		if err != nil {
			return nil, err
		}
		if results[i], err = p.measure(l.batches(c.BatchRows, combined), hot); err != nil {
			return nil, err
		}
		results[i].Log, results[i].Combined, results[i].Method = l.name, combined, method
	}
	return results, nil
}

func (p packing) measure(batches iter.Seq[[]uint64], hot *packer.HotSet) (r Packets, err error) {
	r.Hot = hot.Len()
	seen := make([]uint32, p.placement.Registers())
	recirculations, none := 0, 0
	var gradients []placement.Gradient
	for keys := range batches {
		r.Batches++
		gradients = gradients[:0]
		for _, key := range keys {
			if rank, ok := hot.Rank(key); ok {
				gradients = append(gradients, placement.Gradient{Rank: rank})
			}
		}
		if err := p.pack(keys, gradients, func(packet []placement.Gradient) {
			n := placement.Recirculations(packet, p.placement, seen)
			r.Packets++
			r.Pairs += len(packet)
			r.Worst = max(r.Worst, n)
			recirculations += n
			if n == 0 {
				none++
			}
		}); err != nil {
			return r, err
		}
	}
	r.Recirculations = experiment.Quotient(float64(recirculations), float64(r.Packets))
	r.None = experiment.Quotient(float64(none), float64(r.Packets))
	return r, nil
}

// pack calls each with the payloads of a batch's hot frames.
func pack(p *packer.Packer, keys []uint64, grads []float32, each func(payload []byte) error) (packer.Sent, error) {
	var payload [wire.DefaultPayload]byte
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
				pairs = append(pairs, placement.Gradient{Rank: layout.Rank(stripe, lane), Value: stripe.Value(lane)})
			}
		}
		packet(pairs)
	}
	return nil
}

// Lanes is the share of unfilled lanes in the hot frames of one log's batches
// of Size pairs, hot and cold.
type Lanes struct {
	Log         string  `json:"log"`
	Combined    bool    `json:"combined"` // as in [Packets]
	Size        int     `json:"size"`
	Batches     int     `json:"batches"`      // 0 if the log has no batch of that size
	HotPairs    float64 `json:"hot_pairs"`    // mean over the batches
	LaneAligned float64 `json:"lane_aligned"` // share of unfilled lanes
	Dense       float64 `json:"dense"`        // share of unfilled lanes
}

// laneBatches is how many batches of each size the lane study packs at most.
const laneBatches = 100

func lanes(l *trainingLog, hot *packer.HotSet, c Config, combined bool) ([]Lanes, error) {
	var results []Lanes
	for _, size := range c.BatchSizes {
		var total [2]packer.Sent
		batches := 0
		for layout := range total {
			p, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Layout(layout), Stripes: wire.DefaultStripes})
			if err != nil {
				return nil, err
			}
			batches = 0
			for keys := range l.batchesOf(size, combined) {
				sent, err := pack(p, keys, make([]float32, size), func([]byte) error { return nil })
				if err != nil {
					return nil, err
				}
				total[layout].HotPairs += sent.HotPairs
				total[layout].HotStripes += sent.HotStripes
				batches++
			}
		}
		r := Lanes{Log: l.name, Combined: combined, Size: size, Batches: batches}
		if batches > 0 {
			r.HotPairs = float64(total[packer.LaneAligned].HotPairs) / float64(batches)
			r.LaneAligned = total[packer.LaneAligned].Unfilled()
			r.Dense = total[packer.Dense].Unfilled()
		}
		results = append(results, r)
	}
	return results, nil
}

// batchesOf yields up to laneBatches batches of exactly size keys: those of
// consecutive updates or, if combined, of as many consecutive updates as have
// size distinct keys. The slice is valid during the call.
func (l *trainingLog) batchesOf(size int, combined bool) iter.Seq[[]uint64] {
	return func(yield func([]uint64) bool) {
		if size > len(l.keys) {
			return // not even worth the memory
		}
		batch := make([]uint64, 0, size)
		seen := make(map[uint64]bool, size)
		yielded := 0
		for _, key := range l.keys {
			if combined && seen[key] {
				continue
			}
			seen[key] = combined
			batch = append(batch, key)
			if len(batch) < size {
				continue
			}
			if combined {
				batch = combine(batch)
			}
			if !yield(batch) {
				return
			}
			if yielded++; yielded == laneBatches {
				return
			}
			batch = batch[:0]
			clear(seen)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/libra-ina/libra/packer"
)

// Costs are what updates cost the aggregator and the server together, in nanoseconds of CPU.
type Costs struct {
	Cold    []SizeCost // a row at the server, added and committed, by the rows of the job
	Column  float64    // each column of it after the first
	HotPair []SizeCost // a pair at the aggregator, by the slots of the bank
	Stripe  float64    // a stripe, of which the last one of each page in a push is not full
	Sum     float64    // a harvested sum, from slot to weight
	Block   float64    // besides, the block of 64 slots in which it is
}

// SizeCost is a cost at a size. Between two sizes it grows with the logarithm: the larger, the more additions
// miss the caches.
type SizeCost struct {
	Size int
	Cost float64
}

func costAt(costs []SizeCost, size int) float64 {
	var before SizeCost
	for _, at := range costs {
		if size <= at.Size {
			if before.Size == 0 {
				return at.Cost
			}
			part := math.Log2(float64(size)/float64(before.Size)) / math.Log2(float64(at.Size)/float64(before.Size))
			return before.Cost + part*(at.Cost-before.Cost)
		}
		before = at
	}
	return before.Cost
}

// Measured are the costs on a machine of two cores; docs/tuning.md names the commands that print them.
var Measured = Costs{
	Cold:    []SizeCost{{1e4, 35}, {1e6, 75}, {1e7, 119}},
	Column:  18,
	HotPair: []SizeCost{{1 << 16, 4.6}, {1 << 17, 9}, {1 << 18, 10}, {1 << 19, 12}, {1 << 20, 16}},
	Stripe:  55, Sum: 23, Block: 340,
}

// Auto decides by cost how many rows are hot on an aggregator in XDP: where the aggregator and the server
// together spend least CPU time or, if Apart, the one that spends more does. A row is worth a slot if the server
// is spared more cold pairs than its sum costs in each harvest.
type Auto struct {
	Workers int           // 0 means 4
	Rate    float64       // rows that a worker pushes in a second; 0 means a million
	Batch   int           // rows of a push; 0 means 4,096
	Period  time.Duration // of harvests; 0 means 20 ms
	Apart   bool          // aggregator and server have CPUs of their own: the slower one is what workers wait for
	Costs   Costs         // zero: Measured
}

// Expected is what [Auto] expects of a number of hot rows.
type Expected struct {
	Rows   int     `json:"rows"`
	Share  float64 `json:"share"`      // of the updates in hot rows
	Sums   float64 `json:"sums"`       // in a harvest
	Both   float64 `json:"both_ns"`    // CPU time of aggregator and server for an update
	Busier float64 `json:"busier_ns"`  // that of the one that spends more, and all of harvests
	Server float64 `json:"server_ns"`  // CPU time of the server alone if it gets every update
	Stripe float64 `json:"stripes_ns"` // of Both: stripes that are not full
}

// blockSlots is aggregator.BlockSlots.
const blockSlots = 64

func (a Auto) withDefaults() (Auto, error) {
	a.Workers = cmp.Or(a.Workers, 4)
	a.Rate = cmp.Or(a.Rate, 1e6)
	a.Batch = cmp.Or(a.Batch, 4096)
	a.Period = cmp.Or(a.Period, 20*time.Millisecond)
	if a.Costs.HotPair == nil {
		a.Costs = Measured
	}
	switch {
	case a.Workers < 1:
		return a, fmt.Errorf("%w: %d workers", packer.ErrConfig, a.Workers)
	case !(a.Rate > 0) || math.IsInf(a.Rate, 0):
		return a, fmt.Errorf("%w: %v rows a second", packer.ErrConfig, a.Rate)
	case a.Batch < 1:
		return a, fmt.Errorf("%w: pushes of %d rows", packer.ErrConfig, a.Batch)
	case a.Period <= 0:
		return a, fmt.Errorf("%w: a harvest every %v", packer.ErrConfig, a.Period)
	}
	return a, nil
}

// Choose returns the number of rows of dim gradients at the top of a ranking that costs least, at least
// one if any was counted, and what to expect of it.
func (a Auto) Choose(r Ranking, dim int) (Expected, error) {
	a, err := a.withDefaults()
	if err != nil {
		return Expected{}, err
	}
	if dim < 1 {
		return Expected{}, fmt.Errorf("%w: row dimension %d is not positive", packer.ErrConfig, dim)
	}
	var (
		rate    = float64(a.Workers) * a.Rate * a.Period.Seconds() // updates between two harvests
		pushes  = rate / float64(a.Batch)
		cold    = costAt(a.Costs.Cold, len(r.Counts)) + a.Costs.Column*float64(dim-1)
		most    = min(len(r.Counts), packer.MaxHotRows(dim))
		share   float64 // of the rows so far
		sums    float64 // rows of them in a harvest
		page    float64 // share of the rows of the page
		full    float64 // stripes of former pages that are not full, in a push
		best    Expected
		least   float64 // what is minimised, of best
		already int     // pages before the current one
		block   float64 // share of the rows of the block
		blocks  float64 // former blocks in a harvest
		ended   int     // blocks before the current one
	)
	touched := func(share float64) float64 { return 1 - math.Exp(-share*rate) }
	partial := func(share float64) float64 { return 1 - math.Exp(-share*float64(a.Batch)) }
	for i := range most {
		f := float64(r.Counts[i].Updates) / float64(r.Updates)
		if now := i * dim / packer.PageSlots; now != already {
			full, page, already = full+partial(page), 0, now
		}
		share += f
		page += f
		if now := i * dim / blockSlots; now != ended {
			blocks, block, ended = blocks+touched(block), 0, now
		}
		block += f
		sums += touched(f)
		slots := (i + 1) * dim
		pair := costAt(a.Costs.HotPair, slots)
		// Half of a stripe that is not full is empty.
		stripes := (full + partial(page)) / 2 * a.Costs.Stripe * pushes / rate
		aggregator, server := share*float64(dim)*pair+stripes, (1-share)*cold
		harvest := (sums*float64(dim)*a.Costs.Sum + (blocks+touched(block))*a.Costs.Block) / rate
		e := Expected{
			Rows: i + 1, Share: share, Sums: sums * float64(dim), Server: cold, Stripe: stripes,
			Both: aggregator + server + harvest, Busier: max(aggregator, server) + harvest,
		}
		costs := e.Both
		if a.Apart {
			costs = e.Busier
		}
		if best.Rows == 0 || costs < least {
			best, least = e, costs
		}
	}
	return best, nil
}

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
	Cold     []SizeCost // an update of a row at the server, which looks its key up, by the rows of the job
	Numbered []SizeCost // the same if the worker names the row's number
	Commit   []SizeCost // a row in a period in which it was updated, however often; nil: the server commits none
	Column   float64    // each column of a row after the first, in an update and in a commit
	HotPair  []SizeCost // a pair at the aggregator, by the slots of the bank
	Stripe   float64    // a stripe, of which the last one of each page in a push is not full
	Sum      float64    // a harvested sum, from slot to weight
	Block    float64    // besides, the block of 64 slots in which it is
}

// SizeCost is a cost at a size. Between two sizes it grows with the logarithm: the larger, the more
// additions miss the caches.
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

// Measured are the costs on a machine of two cores; docs/tuning.md names the commands that print
// them.
var Measured = Costs{
	Cold:     []SizeCost{{1e4, 25}, {1e6, 74}, {1e7, 92}},
	Numbered: []SizeCost{{1e4, 17}, {1e6, 26}, {1e7, 34}},
	Commit:   []SizeCost{{1e4, 9}, {1e6, 46}},
	Column:   9,
	HotPair:  []SizeCost{{1 << 16, 4.6}, {1 << 17, 9}, {1 << 18, 10}, {1 << 19, 12}, {1 << 20, 16}},
	Stripe:   55, Sum: 23, Block: 340,
}

// Auto decides by cost how many rows are hot on an aggregator in XDP: where the aggregator and the
// server together spend least CPU time or, if Apart, the one that spends more does. Between two
// harvests, a row costs
//
//   - cold: its updates at the server and, if there were any, a commit;
//   - hot: its pairs at the aggregator and, if there were any, its sums in the harvest, which the
//     server commits too, and the blocks of slots in which they are, as a share with its
//     neighbours.
//
// That a row is updated at all in a period is taken to be as likely as if updates came
// independently.
type Auto struct {
	Workers  int           // 0 means 4
	Rate     float64       // rows that a worker pushes in a second; 0 means a million
	Batch    int           // rows of a push; 0 means 4,096
	Period   time.Duration // of harvests; 0 means 20 ms
	Numbered bool          // workers name the numbers of cold rows, as those do that prepare and locate their batches
	Apart    bool          // aggregator and server have CPUs of their own: the slower one is what workers wait for
	Costs    Costs         // zero: Measured
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
	return a, a.CheckLoad()
}

// updates returns the number of updates between two harvests.
func (a *Auto) updates() float64 { return float64(a.Workers) * a.Rate * a.Period.Seconds() }

// CheckLoad returns [packer.ErrConfig] if the updates between two harvests are no number above 0:
// positive factors may have a product that is 0 or infinite. It takes the fields as they are,
// without defaults.
func (a *Auto) CheckLoad() error {
	if n := a.updates(); !(n > 0) || math.IsInf(n, 0) {
		return fmt.Errorf("%w: %v updates between two harvests, of %d workers that push %v rows a second and a harvest every %v",
			packer.ErrConfig, n, a.Workers, a.Rate, a.Period)
	}
	return nil
}

// Choose returns the number of rows of dim gradients at the top of a ranking that costs least, at
// least one if any was counted, and what to expect of it.
func (a Auto) Choose(r Ranking, dim int) (Expected, error) {
	a, err := a.withDefaults()
	if err != nil {
		return Expected{}, err
	}
	if dim < 1 {
		return Expected{}, fmt.Errorf("%w: row dimension %d is not positive", packer.ErrConfig, dim)
	}
	var (
		rate   = a.updates()
		pushes = rate / float64(a.Batch)
		shares = make([]float64, len(r.Counts))
		cold   = 0.0 // rows to commit in a period
	)
	// Of a low rate, 1 - Exp would leave nothing.
	touched := func(share float64) float64 { return -math.Expm1(-share * rate) }
	partial := func(share float64) float64 { return -math.Expm1(-share * float64(a.Batch)) }
	for i, c := range r.Counts {
		shares[i] = float64(c.Updates) / float64(r.Updates)
		cold += touched(shares[i])
	}
	add, commit := a.coldCosts(len(r.Counts), dim)
	var (
		alone  = add + cold*commit/rate
		share  float64 // of the rows so far
		sums   float64 // in a harvest
		pages  = reached{slots: packer.PageSlots, likely: partial}
		blocks = reached{slots: blockSlots, likely: touched}
		best   Expected
		least  float64 // what is minimised, of best
	)
	for i := range min(len(r.Counts), packer.MaxHotRows(dim)) {
		f := shares[i]
		share += f
		cold -= touched(f)
		sums += touched(f) * float64(dim)
		slots := (i + 1) * dim
		// Half of a stripe that is not full is empty.
		stripes := pages.add(i*dim, f) / 2 * a.Costs.Stripe * pushes / rate
		aggregator := share*float64(dim)*costAt(a.Costs.HotPair, slots) + stripes
		server := (1-share)*add + cold*commit/rate
		harvest := (sums*a.Costs.Sum + blocks.add(i*dim, f)*a.Costs.Block) / rate
		e := Expected{
			Rows: i + 1, Share: share, Sums: sums, Server: alone, Stripe: stripes,
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

// coldCosts returns what an update of a cold row costs, and its commit.
func (a *Auto) coldCosts(rows, dim int) (add, commit float64) {
	costs := a.Costs.Cold
	if a.Numbered {
		costs = a.Costs.Numbered
	}
	more := a.Costs.Column * float64(dim-1)
	if a.Costs.Commit != nil {
		commit = costAt(a.Costs.Commit, rows) + more
	}
	return costAt(costs, rows) + more, commit
}

// reached counts the groups of slots, pages or blocks, that updates are expected to reach.
type reached struct {
	slots  int
	likely func(share float64) float64 // how likely a group is, by its share of the updates

	now    int     // the group of the last row
	share  float64 // of it
	former float64 // of all before
}

// add adds a row, whose first slot is in the same group as the last one's or in a later one, and
// returns how many groups are expected so far.
func (g *reached) add(slot int, share float64) float64 {
	if now := slot / g.slots; now != g.now {
		g.former, g.share, g.now = g.former+g.likely(g.share)*float64(now-g.now), 0, now
	}
	g.share += share
	return g.former + g.likely(g.share)
}

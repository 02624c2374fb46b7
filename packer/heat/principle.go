// SPDX-License-Identifier: Apache-2.0

package heat

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/libra-ina/libra/packer"
)

// ErrShare means that the share of updates that a [Principle] demands needs more rows
// than were counted, or more memory or slots than available.
var ErrShare = errors.New("heat: that share of updates cannot be reached")

// Principle decides how many rows are hot: the paper's Principle 1 (§3.3),
//
//	T_k / T_n >= p    and    slot bytes × k <= c × chip memory
//
// with the trade-off rule of §5.3: rows are added Step at a time until a step
// raises T_k/T_n by less than MinGain. If that leaves T_k/T_n below p, k
// grows to the smallest value that reaches p. The budget caps the first and
// refuses the second. The zero value has the paper's figures.
type Principle struct {
	// Share is p, the minimal share of all updates in the hot rows, 0 <= p < 1.
	// 0 demands none.
	Share float64
	// MemoryShare is c, the share of the chip's memory for gradients, 0 < c <= 1.
	// 0 means DefaultMemoryShare.
	MemoryShare float64
	// ChipBytes is the chip's memory. 0 means DefaultChipBytes.
	ChipBytes int
	// SlotBytes is the memory of one scalar. 0 means 4, a float32; exact
	// fixed point takes 8.
	SlotBytes int
	// MaxSlots is the number of scalars that the aggregator grants a job. 0
	// means [packer.PageSlots], what every switch has.
	MaxSlots int
	// Step is the number of rows in a step of the trade-off rule. 0 means
	// 1,000.
	Step int
	// MinGain is the smallest gain of T_k/T_n for another step of the trade-off
	// rule. 0 means 0.01.
	MinGain float64
}

// The defaults of a [Principle], which the paper evaluates.
const (
	DefaultMemoryShare = 0.05
	DefaultChipBytes   = 20 << 20
)

func (p Principle) withDefaults() (Principle, error) {
	p.MemoryShare = cmp.Or(p.MemoryShare, DefaultMemoryShare)
	p.ChipBytes = cmp.Or(p.ChipBytes, DefaultChipBytes)
	p.SlotBytes = cmp.Or(p.SlotBytes, 4)
	p.MaxSlots = cmp.Or(p.MaxSlots, packer.PageSlots)
	p.Step = cmp.Or(p.Step, 1000)
	p.MinGain = cmp.Or(p.MinGain, 0.01)
	switch {
	case !(p.Share >= 0 && p.Share < 1):
		return p, fmt.Errorf("%w: share of updates p = %v is not in [0, 1)", packer.ErrConfig, p.Share)
	case !(p.MemoryShare > 0 && p.MemoryShare <= 1):
		return p, fmt.Errorf("%w: memory share c = %v is not in (0, 1]", packer.ErrConfig, p.MemoryShare)
	case !(p.MinGain > 0 && p.MinGain <= 1):
		return p, fmt.Errorf("%w: smallest gain %v is not in (0, 1]", packer.ErrConfig, p.MinGain)
	case min(p.ChipBytes, p.SlotBytes, p.MaxSlots, p.Step) < 0:
		return p, fmt.Errorf("%w: negative size in %+v", packer.ErrConfig, p)
	}
	return p, nil
}

// Rows returns k, the number of hot rows of dim gradients at the top of a
// ranking. It returns [packer.ErrConfig] or [ErrShare]. If no step gains enough
// and no share is demanded, k is 0: aggregation in the network is not worthwhile.
func (p Principle) Rows(r Ranking, dim int) (int, error) {
	p, err := p.withDefaults()
	if err != nil {
		return 0, err
	}
	if dim < 1 {
		return 0, fmt.Errorf("%w: row dimension %d is not positive", packer.ErrConfig, dim)
	}
	budget := min(int(p.MemoryShare*float64(p.ChipBytes))/p.SlotBytes, p.MaxSlots) / dim
	k := min(p.tradeOff(r), budget)
	if p.Share == 0 {
		return k, nil
	}
	need, share := reach(r, p.Share)
	switch {
	case share < p.Share:
		return 0, fmt.Errorf("%w: p = %v, but all %d counted rows have %.4f", ErrShare, p.Share, len(r.Counts), share)
	case need > budget:
		return 0, fmt.Errorf("%w: p = %v takes %d rows of dimension %d, there is room for %d; lower p, raise c or sample more",
			ErrShare, p.Share, need, dim, budget)
	}
	return max(k, need), nil
}

// tradeOff returns the k of the rule of §5.3, without the step whose gain is too
// small.
func (p Principle) tradeOff(r Ranking) int {
	k := 0
	for k < len(r.Counts) {
		next := min(k+p.Step, len(r.Counts))
		var gain uint64
		for _, c := range r.Counts[k:next] {
			gain += c.Updates
		}
		if float64(gain) < p.MinGain*float64(r.Updates) {
			break
		}
		k = next
	}
	return k
}

// reach returns the smallest k with T_k/T_n >= share, and that T_k/T_n.
func reach(r Ranking, share float64) (k int, got float64) {
	var covered uint64
	for k < len(r.Counts) && got < share {
		covered += r.Counts[k].Updates
		got = float64(covered) / float64(r.Updates)
		k++
	}
	return k, got
}

// HotSet makes the hot set of the rows that [Principle.Rows] chooses. It uses Rate,
// Seed and Rows of meta, and fills in the rest.
func (p Principle) HotSet(r Ranking, dim int, meta packer.Meta) (*packer.HotSet, error) {
	k, err := p.Rows(r, dim)
	if err != nil {
		return nil, err
	}
	return r.Top(k, dim, meta)
}

// Top makes a hot set of the first k rows of a ranking, or of all if there are
// fewer. It uses Rate, Seed and Rows of meta, and fills in the rest.
func (r Ranking) Top(k, dim int, meta packer.Meta) (*packer.HotSet, error) {
	top := r.Counts[:min(k, len(r.Counts))]
	keys, counts := make([]uint64, len(top)), make([]uint64, len(top))
	meta.Updates, meta.CountErr, meta.Covered = r.Updates, r.Err, 0
	for i, c := range top {
		keys[i], counts[i] = c.Key, c.Updates
		meta.Covered += c.Updates
	}
	return packer.NewHotSet(dim, keys, counts, meta)
}

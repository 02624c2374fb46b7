package hotset

import (
	"iter"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

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

// lanes measures the share of unfilled lanes of one log by batch size.
func lanes(l *trainingLog, c Config, combined bool) ([]Lanes, error) {
	hot, err := hotSetOf(l, c)
	if err != nil {
		return nil, err
	}
	var results []Lanes
	for _, size := range c.BatchSizes {
		var total [2]packer.Sent
		batches := 0
		for layout := range total {
			p, err := packer.New(packer.Config{HotSet: hot, Layout: packer.Layout(layout), Stripes: wire.MaxStripes})
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

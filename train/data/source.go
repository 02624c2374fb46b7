// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
)

// BiasKey is the row key of a model's intercept. No feature may have it.
const BiasKey = math.MaxUint64

// Sample is one row of a log: its features and its label.
type Sample struct {
	Label  float32   // of classification, 1 for a click, else 0
	Keys   []uint64  // a feature's index is its row key
	Values []float32 // one for each key
}

// Shard is a worker's part of a log: the rows whose number, counted from 0, is
// Index modulo Count. The zero Shard is the whole log.
type Shard struct{ Index, Count int }

func (s Shard) normal() (Shard, error) {
	if s == (Shard{}) {
		return Shard{0, 1}, nil
	}
	if s.Index < 0 || s.Index >= s.Count {
		return s, fmt.Errorf("data: shard %d of %d does not exist", s.Index, s.Count)
	}
	return s, nil
}

// Size returns the number of the shard's rows among total rows.
func (s Shard) Size(total int) int { return (total - s.Index + s.Count - 1) / s.Count }

// Source yields the samples of one shard in a fixed order, pass after pass. It
// is not safe for concurrent use.
type Source interface {
	// Next stores the next sample in s, whose slices it reuses, and returns
	// io.EOF at the end of a pass.
	Next(s *Sample) error
	// Rewind starts the next pass.
	Rewind() error
	// Shard returns the rows that the source yields.
	Shard() Shard
	// Rows returns the number of rows, of all shards, that this pass has reached. At the end of a
	// pass it is the size of the log.
	Rows() int
	// Close releases the source's resources.
	Close() error
}

// SampledKeys reads one pass of src and yields the row keys that each of a random part of its
// samples updates: its features and the bias. It is for finding the hot set (the paper's §3.3,
// where 4 to 8 % of the samples suffice). The choice depends only on seed and the sample's
// position. The slice is valid during the call. An error is yielded with nil keys and ends the
// iteration.
func SampledKeys(src Source, fraction float64, seed uint64) iter.Seq2[[]uint64, error] {
	return func(yield func([]uint64, error) bool) {
		if err := src.Rewind(); err != nil {
			yield(nil, err)
			return
		}
		choose := rand.New(rand.NewPCG(seed, uint64(src.Shard().Index)))
		var s Sample
		for more := true; more; {
			err := src.Next(&s)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield(nil, err)
				}
				return
			}
			if choose.Float64() < fraction {
				s.Keys = append(s.Keys, BiasKey)
				more = yield(s.Keys, nil)
			}
		}
	}
}

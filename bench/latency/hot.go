// SPDX-License-Identifier: Apache-2.0

package latency

import (
	"errors"
	"fmt"
	"io"

	"github.com/libra-ina/libra/packer/heat"
	"github.com/libra-ina/libra/train/data"
)

// HotShare is the share of the hottest parameters in the updates of a log.
type HotShare struct {
	File       string `json:"file"`
	Parameters int    `json:"parameters"`
	Updates    uint64 `json:"updates"`
	Top        int    `json:"top"`
	// Share of the updates is of the Top hottest parameters; of all, if there are no more.
	Share float64 `json:"share"`
	// Curve has the shares of the hottest 0, 1, ... 100 % of Top.
	Curve []float64 `json:"curve"`
}

// countLog counts the updates of a log's parameters: one of each parameter that occurs in a batch.
func countLog(path string, batch, top int) (h HotShare, err error) {
	src, err := data.OpenFile(path, data.Regression, data.Shard{}) // with any labels
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	var (
		counts heat.Exact
		sample data.Sample
	)
	updated := map[uint64]bool{}
	for n := 1; ; n++ {
		err := src.Next(&sample)
		if err != nil && !errors.Is(err, io.EOF) {
			return h, err
		}
		if err == nil {
			for _, key := range sample.Keys {
				updated[key] = true
			}
		}
		if err != nil || n%batch == 0 {
			for key := range updated {
				counts.Add(key)
			}
			clear(updated)
		}
		if err != nil {
			return shareOf(path, counts.Ranking(), top)
		}
	}
}

// shareOf returns the share of the first ranks, and how it grows.
func shareOf(path string, r heat.Ranking, top int) (HotShare, error) {
	if r.Updates == 0 {
		return HotShare{}, fmt.Errorf("%s: %w", path, data.ErrEmpty)
	}
	h := HotShare{File: path, Parameters: len(r.Counts), Updates: r.Updates, Top: top}
	const steps = 100
	covered, rank := uint64(0), 0
	for i := range steps + 1 {
		for ; rank < min(top*i/steps, len(r.Counts)); rank++ {
			covered += r.Counts[rank].Updates
		}
		h.Curve = append(h.Curve, float64(covered)/float64(r.Updates))
	}
	h.Share = h.Curve[steps]
	return h, nil
}

// SPDX-License-Identifier: Apache-2.0

package data

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
)

// The defaults of [SyntheticConfig]. Hot and HotShare are those of the search
// engine in the paper's §3.1; the paper's advertising task has a share of 0.7.
const (
	DefaultRows     = 200_000
	DefaultFields   = 20
	DefaultFeatures = 1 << 20
	DefaultHot      = 30_000
	DefaultHotShare = 0.5
)

// SyntheticConfig describes a click log with the skew that the paper's §3.1 found in production: a
// few tens of thousands of hot parameters receive half of all updates or more.
//
// Every sample has one feature of each field. All fields have the same number of features and the
// same distribution over them, a Zipf–Mandelbrot law whose exponent is solved for HotShare. Labels
// come from a planted factorisation machine, so that there is something to learn.
type SyntheticConfig struct {
	// Rows is the number of samples of the whole log; 0 means [DefaultRows].
	Rows int
	// First is the number of the log's first sample. Logs of the same seed are parts of the same
	// endless one, so rows after a training log's are held-out ones.
	First int
	// Fields is the number of features of a sample; 0 means [DefaultFields].
	Fields int
	// Features is the number of distinct features; 0 means [DefaultFeatures]. It is rounded down to
	// a multiple of Fields.
	Features int
	// Hot is the number of hot features; 0 means [DefaultHot].
	Hot int
	// HotShare is the hot features' share of all occurrences, in (0, 1); 0 means [DefaultHotShare].
	HotShare float64
	// Seed selects the log.
	Seed uint64
	// Task decides the labels: clicks drawn with the planted model's probabilities, or its scores
	// with noise of the standard normal distribution.
	Task Task
	// Spread scatters the keys over the whole 64-bit space, as hashing does.
	// Otherwise they are 0 .. Features-1, field after field, hot ones first.
	Spread bool
}

// Synthetic is a [Source] of a synthetic click log. A sample depends on the seed and its row number
// only, so that shards need not read each other's rows. Between processor architectures a log may
// differ in single labels or features, because functions of package math differ in their last bits.
type Synthetic struct {
	cfg        SyntheticConfig
	shard      Shard
	perField   int
	cumulative []float64 // of the ranks in a field
	row        int       // the next row, of any shard
}

var _ Source = (*Synthetic)(nil)

const (
	// skewOffset flattens the head: without it a field's first feature would occur many times in
	// nearly every mini-batch.
	skewOffset = 10
	// The planted model: the amplitude of the uniform weights, the same for the interactions, and
	// an intercept that makes clicks a minority.
	truthScale     = 4.0
	truthPairs     = 3.0
	truthFactors   = 2
	truthIntercept = -1.0
)

// NewSynthetic returns the source of a shard.
func NewSynthetic(cfg SyntheticConfig, shard Shard) (*Synthetic, error) {
	shard, err := shard.normal()
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name     string
		value    *int
		fallback int
	}{
		{"rows", &cfg.Rows, DefaultRows},
		{"rows before the first", &cfg.First, 0},
		{"fields", &cfg.Fields, DefaultFields},
		{"features", &cfg.Features, DefaultFeatures},
		{"hot features", &cfg.Hot, DefaultHot},
	} {
		*f.value = cmp.Or(*f.value, f.fallback)
		if *f.value < 0 {
			return nil, fmt.Errorf("data: %d %s", *f.value, f.name)
		}
	}
	cfg.HotShare = cmp.Or(cfg.HotShare, DefaultHotShare)
	s := &Synthetic{cfg: cfg, shard: shard, perField: cfg.Features / cfg.Fields}
	if s.cumulative, err = lastSkew.fit(s.perField, cfg.Hot/cfg.Fields, skewOffset, cfg.HotShare); err != nil {
		return nil, err
	}
	return s, s.Rewind()
}

// Shard returns the rows that the source yields.
func (s *Synthetic) Shard() Shard { return s.shard }

// Rows returns the number of rows that this pass has reached.
func (s *Synthetic) Rows() int { return s.row }

// Close does nothing.
func (s *Synthetic) Close() error { return nil }

// Rewind starts again at the first row.
func (s *Synthetic) Rewind() error {
	s.row = 0
	return nil
}

// Next stores the shard's next row in dst.
func (s *Synthetic) Next(dst *Sample) error {
	for s.row < s.cfg.Rows && s.row%s.shard.Count != s.shard.Index {
		s.row++
	}
	if s.row >= s.cfg.Rows {
		return io.EOF
	}
	pcg := rand.NewPCG(s.cfg.Seed, uint64(s.cfg.First+s.row))
	rng := rand.New(pcg)
	s.row++

	dst.Keys, dst.Values = dst.Keys[:0], dst.Values[:0]
	var truth truth
	for field := range s.cfg.Fields {
		rank := draw(s.cumulative, rng.Float64())
		feature := uint64(field*s.perField + rank)
		truth.add(s.cfg.Seed, feature, s.relevance(rank))
		if s.cfg.Spread {
			feature = scatter(feature)
		}
		dst.Keys = append(dst.Keys, feature)
		dst.Values = append(dst.Values, 1)
	}
	score := truth.score(s.cfg.Fields)
	switch {
	case s.cfg.Task == Regression:
		dst.Label = float32(score + rng.NormFloat64())
	case rng.Float64() < sigmoid(score):
		dst.Label = 1
	default:
		dst.Label = 0
	}
	return nil
}

// scatter is a bijection of the 64-bit numbers (splitmix64). It maps no feature
// number to BiasKey.
func scatter(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// truth sums the contributions of a sample's features to the planted model's score.
type truth struct {
	linear        float64
	sums, squares [truthFactors]float64
}

// relevance scales a feature's weights: rare features matter less. Otherwise most labels would
// depend on weights that cannot be learned from a log of a reasonable size.
func (s *Synthetic) relevance(rank int) float64 {
	hot := float64(s.cfg.Hot) / float64(s.cfg.Fields)
	return hot / (hot + float64(rank))
}

func (t *truth) add(seed, feature uint64, relevance float64) {
	// A separate stream from those of the rows.
	rng := rand.New(rand.NewPCG(^seed, feature))
	t.linear += float64(relevance * (2*float64(rng.Float64()) - 1))
	for c := range t.sums {
		v := float64(relevance * (2*float64(rng.Float64()) - 1))
		t.sums[c] += v
		t.squares[c] += float64(v * v)
	}
}

// score scales the sums so that their spread does not depend on the number of
// fields.
func (t *truth) score(fields int) float64 {
	var pairs float64
	for c := range t.sums {
		pairs += float64((float64(t.sums[c]*t.sums[c]) - t.squares[c]) / 2)
	}
	n := float64(fields)
	return truthIntercept + float64(truthScale*t.linear)/math.Sqrt(n) + float64(truthPairs*pairs)/n
}

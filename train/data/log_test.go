// SPDX-License-Identifier: Apache-2.0

package data

import (
	"io"

	"pgregory.net/rapid"
)

// memory is a Source of samples in memory.
type memory struct {
	samples []Sample
	shard   Shard
	next    int
}

func (m *memory) Next(s *Sample) error {
	for m.next < len(m.samples) && m.next%m.shard.Count != m.shard.Index {
		m.next++
	}
	if m.next >= len(m.samples) {
		return io.EOF
	}
	s.Label = m.samples[m.next].Label
	s.Keys = append(s.Keys[:0], m.samples[m.next].Keys...)
	s.Values = append(s.Values[:0], m.samples[m.next].Values...)
	m.next++
	return nil
}

func (m *memory) Rewind() error { m.next = 0; return nil }
func (m *memory) Shard() Shard  { return m.shard }
func (m *memory) Rows() int     { return min(m.next, len(m.samples)) }
func (m *memory) Close() error  { return nil }

// samples draws a click log with few features, some of which occur twice in a sample.
func samples(t *rapid.T, ones bool, task Task) []Sample {
	labels := rapid.Map(rapid.Bool(), label)
	if task == Regression {
		labels = rapid.Float32Range(-5, 5)
	}
	key := rapid.OneOf(rapid.Uint64Range(0, 12), rapid.Uint64Max(BiasKey-1))
	value := rapid.Float32Range(-2, 2)
	if ones {
		value = rapid.Just(float32(1))
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Sample {
		keys := rapid.SliceOfN(key, 0, 6).Draw(t, "keys")
		return Sample{
			labels.Draw(t, "label"), keys,
			rapid.SliceOfN(value, len(keys), len(keys)).Draw(t, "values"),
		}
	}), 1, 20).Draw(t, "samples")
}

// dataset loads samples.
func dataset(t rapid.TB, samples []Sample) *Dataset {
	d, err := Load(&memory{samples: samples, shard: Shard{0, 1}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// label returns the label of a click, or of none.
func label(click bool) float32 {
	if click {
		return 1
	}
	return 0
}

// numbered is a log of n samples, each with its number as its one feature.
func numbered(n int, shard Shard) *memory {
	log := &memory{shard: shard}
	for i := range uint64(n) {
		log.samples = append(log.samples, Sample{1, []uint64{i}, []float32{1}})
	}
	return log
}

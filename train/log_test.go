// SPDX-License-Identifier: Apache-2.0

package train

import (
	"io"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/train/data"
)

// memory is a Source of samples in memory.
type memory struct {
	samples []data.Sample
	shard   data.Shard
	next    int
}

func (m *memory) Next(s *data.Sample) error {
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

func (m *memory) Rewind() error     { m.next = 0; return nil }
func (m *memory) Shard() data.Shard { return m.shard }
func (m *memory) Rows() int         { return min(m.next, len(m.samples)) }
func (m *memory) Close() error      { return nil }

// samples draws a click log with few features, some of which occur twice in a sample.
func samples(t *rapid.T, ones bool, task data.Task) []data.Sample {
	labels := rapid.Map(rapid.Bool(), label)
	if task == data.Regression {
		labels = rapid.Float32Range(-5, 5)
	}
	key := rapid.OneOf(rapid.Uint64Range(0, 12), rapid.Uint64Max(data.BiasKey-1))
	value := rapid.Float32Range(-2, 2)
	if ones {
		value = rapid.Just(float32(1))
	}
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) data.Sample {
		keys := rapid.SliceOfN(key, 0, 6).Draw(t, "keys")
		return data.Sample{
			Label: labels.Draw(t, "label"), Keys: keys,
			Values: rapid.SliceOfN(value, len(keys), len(keys)).Draw(t, "values"),
		}
	}), 1, 20).Draw(t, "samples")
}

// dataset loads samples.
func dataset(t *rapid.T, samples []data.Sample) *data.Dataset {
	d, err := data.Load(&memory{samples: samples, shard: data.Shard{Index: 0, Count: 1}})
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
func numbered(n int, shard data.Shard) *memory {
	log := &memory{shard: shard}
	for i := range uint64(n) {
		log.samples = append(log.samples, data.Sample{Label: 1, Keys: []uint64{i}, Values: []float32{1}})
	}
	return log
}

// oneFeatureEach is a log of n samples with one feature each, of which every other is a click.
func oneFeatureEach(tb testing.TB, n int) *data.Dataset {
	tb.Helper()
	log := &memory{shard: data.Shard{Index: 0, Count: 1}}
	for i := range n {
		log.samples = append(log.samples, data.Sample{Label: float32(i % 2), Keys: []uint64{uint64(10 * i)}, Values: []float32{1}})
	}
	d, err := data.Load(log)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// synthetic is one shard of a synthetic log.
func synthetic(tb testing.TB, cfg data.SyntheticConfig, shard data.Shard) *data.Synthetic {
	tb.Helper()
	s, err := data.NewSynthetic(cfg, shard)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// shards are those of a small log.
func shards(tb testing.TB, rows, n int) (all []data.Source) {
	tb.Helper()
	log := data.SyntheticConfig{Rows: rows, Fields: 5, Features: 500, Hot: 50, Seed: 2}
	for i := range n {
		all = append(all, synthetic(tb, log, data.Shard{Index: i, Count: n}))
	}
	return all
}

// open opens a data file until the end of the test.
func open(tb testing.TB, name string) *data.File {
	tb.Helper()
	f, err := data.OpenFile(name, data.Classification, data.Shard{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// SPDX-License-Identifier: Apache-2.0

package data

import "math/bits"

// Batch is a mini-batch: samples whose features are indices into the ascending list of the rows
// that the batch reads and updates.
type Batch struct {
	// Keys are the rows of the batch, without repetition, ascending; the last
	// is BiasKey.
	Keys []uint64
	// Labels are the labels of the samples.
	Labels []float32

	features []uint32  // position in Keys; all samples, one after the other
	values   []float32 // one for each feature, or nil if all are 1
	offsets  []int     // sample i has features[offsets[i]:offsets[i+1]]

	// For the dataset that the batch was last built from:
	used     []uint64 // one bit per key: it occurs in the batch
	position []uint32 // position in Keys of keys that occur
}

// Len returns the number of samples.
func (b *Batch) Len() int { return len(b.Labels) }

// Build fills b with the given samples of d. It reuses b's memory.
func (b *Batch) Build(d *Dataset, samples []int) {
	if words := (len(d.keys) + 63) / 64; len(b.used) < words {
		b.used = make([]uint64, words)
		b.position = make([]uint32, words*64)
	}
	b.features, b.Labels = b.features[:0], b.Labels[:0]
	b.offsets = append(b.offsets[:0], 0)
	b.values = b.values[:0]
	for _, i := range samples {
		begin, end := d.offsets[i], d.offsets[i+1]
		for _, id := range d.features[begin:end] {
			b.used[id>>6] |= 1 << (id & 63)
		}
		b.features = append(b.features, d.features[begin:end]...)
		if d.values != nil {
			b.values = append(b.values, d.values[begin:end]...)
		}
		b.offsets = append(b.offsets, len(b.features))
		b.Labels = append(b.Labels, d.labels[i])
	}
	if d.values == nil {
		b.values = nil
	}
	// Reading the bits in order sorts the keys without comparisons.
	b.Keys = b.Keys[:0]
	for w, word := range b.used {
		for ; word != 0; word &= word - 1 {
			id := w<<6 | bits.TrailingZeros64(word)
			b.position[id] = uint32(len(b.Keys))
			b.Keys = append(b.Keys, d.keys[id])
		}
		b.used[w] = 0
	}
	b.Keys = append(b.Keys, BiasKey)
	for i, id := range b.features {
		b.features[i] = b.position[id]
	}
}

// Sample returns the features of sample i, as positions in Keys, and their values; values is nil if
// all are 1. The slices belong to the batch.
func (b *Batch) Sample(i int) (features []uint32, values []float32) {
	begin, end := b.offsets[i], b.offsets[i+1]
	if b.values == nil {
		return b.features[begin:end], nil
	}
	return b.features[begin:end], b.values[begin:end]
}

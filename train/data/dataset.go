// SPDX-License-Identifier: Apache-2.0

package data

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Dataset holds samples in memory, compactly: a feature is a 4-byte index into the sorted keys that
// occur, and values take no memory if all are 1.
type Dataset struct {
	keys     []uint64  // ascending
	features []uint32  // index into keys; all samples, one after the other
	values   []float32 // one for each feature, or nil if all are 1
	offsets  []int     // sample i has features[offsets[i]:offsets[i+1]]
	labels   []float32
}

// Load reads the rest of a pass of src.
func Load(src Source) (*Dataset, error) {
	d, _, err := LoadPart(src, math.MaxInt)
	return d, err
}

// LoadPart reads at most limit samples; more is false at the end of the pass.
func LoadPart(src Source, limit int) (d *Dataset, more bool, err error) {
	d = &Dataset{offsets: []int{0}}
	ids := make(map[uint64]uint32)
	var s Sample
	for len(d.labels) < limit {
		err := src.Next(&s)
		if errors.Is(err, io.EOF) {
			d.sortKeys()
			return d, false, nil
		}
		if err != nil {
			return nil, false, err
		}
		for i, key := range s.Keys {
			id, known := ids[key]
			if !known {
				if len(d.keys) == math.MaxUint32 {
					return nil, false, fmt.Errorf("data: more than %d different features in memory; use a smaller window", len(d.keys))
				}
				id = uint32(len(d.keys))
				ids[key] = id
				d.keys = append(d.keys, key)
			}
			if d.values == nil && s.Values[i] != 1 {
				d.values = make([]float32, len(d.features), cap(d.features))
				for j := range d.values {
					d.values[j] = 1
				}
			}
			d.features = append(d.features, id)
			if d.values != nil {
				d.values = append(d.values, s.Values[i])
			}
		}
		d.offsets = append(d.offsets, len(d.features))
		d.labels = append(d.labels, s.Label)
	}
	d.sortKeys()
	return d, true, nil
}

// sortKeys renumbers the features so that keys ascend.
func (d *Dataset) sortKeys() {
	old := d.keys
	d.keys = slices.Clone(old)
	slices.Sort(d.keys)
	renumbered := make([]uint32, len(old))
	for i, key := range old {
		n, _ := slices.BinarySearch(d.keys, key)
		renumbered[i] = uint32(n)
	}
	for i, id := range d.features {
		d.features[i] = renumbered[id]
	}
}

// Len returns the number of samples.
func (d *Dataset) Len() int { return len(d.labels) }

// Labels returns the samples' labels. The slice belongs to the dataset.
func (d *Dataset) Labels() []float32 { return d.labels }

// Keys returns the row keys that occur, ascending. The slice belongs to the dataset.
func (d *Dataset) Keys() []uint64 { return d.keys }

// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/codec"
)

// Coding are the options of how cold gradients are coded.
type Coding struct {
	// CodecBound and CodecScale are codec.bound and codec.scale of the cluster file; 0 and 0 mean that
	// cold gradients are floats.
	CodecBound, CodecScale int
}

// checkCoding reports the first invalid option.
func (o Coding) checkCoding() error {
	switch {
	case o.CodecBound != 0 && (o.CodecBound < codec.MinBound || o.CodecBound > codec.MaxBound):
		return BoundError(o.CodecBound)
	case o.CodecScale != 0 && o.CodecBound == 0:
		return fmt.Errorf("--codec-scale %d: without --codec-bound nothing is coded, so give both, or leave it out",
			o.CodecScale)
	case o.CodecScale < codec.MinScale || o.CodecScale > codec.MaxScale:
		return fmt.Errorf("--codec-scale %d: it must be from %d to %d", o.CodecScale, codec.MinScale, codec.MaxScale)
	}
	return nil
}

// BoundError is the error of a bound that is none.
func BoundError(bound int) error {
	return fmt.Errorf("--codec-bound %d: it must be from %d to %d; without it, gradients are floats", bound,
		codec.MinBound, codec.MaxBound)
}

// fields returns the options as those of the cluster file.
func (o Coding) fields() cluster.Codec {
	if o.CodecBound == 0 {
		return cluster.Codec{}
	}
	return cluster.Codec{Bound: &o.CodecBound, Scale: o.CodecScale}
}

// SPDX-License-Identifier: Apache-2.0

package cluster

import "github.com/libra-ina/libra/codec"

// Codec says how the gradients of cold rows are coded. They are floats if Bound is nil.
type Codec struct {
	Bound *int `yaml:"bound,omitempty"`
	Scale int  `yaml:"scale,omitempty"`
}

// Config returns the configuration of the codec, the zero value for floats.
func (c Codec) Config() codec.Config {
	if c.Bound == nil {
		return codec.Config{}
	}
	return codec.Config{Bound: *c.Bound, Scale: c.Scale}
}

func (c *Config) checkCodec(v *mistakes) {
	bound, scale := c.Codec.Bound, c.Codec.Scale
	switch {
	case bound == nil && scale != 0:
		v.addMistake("codec.scale: %d, but codec.bound is missing, without which nothing is coded: give both, or leave scale out", scale)
		return
	case bound == nil:
		return
	case *bound < codec.MinBound || *bound > codec.MaxBound:
		v.addMistake("codec.bound: %d is not in %d..%d: leave it out to send floats", *bound, codec.MinBound, codec.MaxBound)
	case c.Serverless():
		v.addMistake("codec.bound: %d, but the file has no server, to which coded rows go: leave it out, or give the file a server, a model and data", *bound)
	}
	if scale < codec.MinScale || scale > codec.MaxScale {
		v.addMistake("codec.scale: %d is not in %d..%d", scale, codec.MinScale, codec.MaxScale)
	}
}

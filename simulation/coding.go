// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// losslessCodec codes every gradient of a life of workers, a multiple of 2^-22 below 4, without a
// loss: below 2^-15 in one byte, below 2^-8 in two, others in four. So a gradient is still a
// number, and a frame with it is not like others.
var losslessCodec = codec.Config{Bound: 14, Scale: 8}

// coldRows returns the rows of a COLD or COLD_AT frame, decoded.
func coldRows(payload []byte, h wire.Header, config codec.Config) (wire.Rows, error) {
	if h.Flags&wire.FlagCoded == 0 {
		return wire.ParseRows(payload, h.Type)
	}
	c, err := codec.New(config)
	if err != nil {
		return wire.Rows{}, err
	}
	rows, codes, err := wire.ParseCoded(payload, h.Type)
	if err != nil {
		return rows, err
	}
	values := make([]float32, rows.Count*rows.Dim)
	if err := c.Decode(values, codes); err != nil {
		return rows, err
	}
	return rows.WithFloats(values, make([]byte, 4*len(values))), nil
}

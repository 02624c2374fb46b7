// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// errNoCodec means that a frame is coded in a job without a codec.
var errNoCodec = errors.New("transport: a coded frame in a job without a codec")

// checkCodec checks the codec of a server; that of a worker is its packer's.
func checkCodec(config codec.Config) error {
	if config == (codec.Config{}) {
		return nil
	}
	_, err := codec.New(config)
	if err == nil && config.Paper {
		err = errors.New("frames do not have the paper's codes: leave Paper out")
	}
	if err != nil {
		return fmt.Errorf("%w: ServerConfig.Codec: %w", ErrConfig, err)
	}
	return nil
}

// decoder reads rows of frames, decoded if they are coded. What it returns is valid until the next
// call. A nil one reads rows that are not coded.
type decoder struct {
	codec.Codec
	values [wire.MaxCoded]float32
	bytes  [wire.MaxCoded * 4]byte // of the values, as in a frame without codes
}

// newDecoder returns nil if nothing is coded, or the configuration is wrong.
func newDecoder(config codec.Config) *decoder {
	c, err := codec.New(config)
	if config == (codec.Config{}) || err != nil {
		return nil
	}
	return &decoder{Codec: c}
}

// parseRows returns the rows of a payload of a type that has rows.
func (d *decoder) parseRows(payload []byte, h wire.Header) (wire.Rows, error) {
	if h.Flags&wire.FlagCoded == 0 || h.Type != wire.TypeCold && h.Type != wire.TypeColdAt {
		return wire.ParseRows(payload, h.Type)
	}
	if d == nil {
		return wire.Rows{}, errNoCodec
	}
	rows, codes, err := wire.ParseCoded(payload, h.Type)
	if err != nil {
		return rows, err
	}
	values := d.values[:rows.Count*rows.Dim]
	if err := d.Decode(values, codes); err != nil {
		return rows, err
	}
	return rows.WithFloats(values, d.bytes[:]), nil
}

// codedFits reports whether a payload has room for any row with its key, whatever its codes are.
func codedFits(limit, dim int) bool {
	return wire.CodedLen(wire.TypeCold, 1, codec.MaxLen(dim)) <= limit
}

func codedTooLong(limit, dim int) error {
	return fmt.Errorf("%w: a row of %d gradients may have %d bytes of codes, which do not fit a payload of %d bytes: "+
		"leave the codec out (codec.bound), or give the link a larger MTU (switch.stripes)", ErrConfig, dim,
		codec.MaxLen(dim), limit)
}

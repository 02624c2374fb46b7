// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/wire"
)

// What is measured. The last two lose nothing.
const (
	Codec  = "codec"  // package codec
	Plain  = "plain"  // the same without vectorised code
	ZFP    = "zfp"    // the library, with an absolute bound of the error
	Zstd   = "zstd"   // the fastest level
	Snappy = "snappy" // its block format
)

// method shortens the values, and restores them.
type method struct {
	name    string
	bound   int // E of an error below 2^-E; 0: it has none
	measure func(context.Context) (Sample, error)
}

// errorOf is the error that a method may have, 2^-E.
func errorOf(bound int) float64 {
	if bound == 0 {
		return 0
	}
	return math.Ldexp(1, -bound)
}

// codecMethods returns package codec with each bound.
func codecMethods(bounds []int, values []float32) (all []method, err error) {
	for _, bound := range bounds {
		c, err := codec.New(codec.Config{Bound: bound})
		if err != nil {
			return nil, err
		}
		all = append(all, here(Codec, bound, values, c.Append, c.Decode),
			here(Plain, bound, values, c.Plain().Append, c.Plain().Decode))
	}
	return all, nil
}

// losslessMethods returns general-purpose compression.
func losslessMethods(values []float32) ([]method, error) {
	writer, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	reader, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	raw, out := make([]byte, 4*len(values)), make([]byte, 0, 4*len(values))
	restored := func(values []float32, raw []byte, err error) error {
		if err == nil && len(raw) != 4*len(values) {
			err = fmt.Errorf("%d bytes came back of %d", len(raw), 4*len(values))
		}
		if err == nil {
			wire.Floats(values, raw)
		}
		return err
	}
	return []method{
		here(Zstd, 0, values, func(dst []byte, values []float32) []byte {
			wire.PutFloats(raw, values)
			return writer.EncodeAll(raw, dst)
		}, func(values []float32, coded []byte) error {
			back, err := reader.DecodeAll(coded, out)
			return restored(values, back, err)
		}),
		here(Snappy, 0, values, func(dst []byte, values []float32) []byte {
			wire.PutFloats(raw, values)
			return s2.EncodeSnappy(dst[:cap(dst)], raw)
		}, func(values []float32, coded []byte) error {
			back, err := s2.Decode(out[:cap(out)], coded)
			return restored(values, back, err)
		}),
	}, nil
}

// here is a method that runs in this process, on the caller's thread.
func here(name string, bound int, values []float32, encode func(dst []byte, values []float32) []byte,
	decode func(values []float32, coded []byte) error) method {
	room := max(codec.MaxLen(len(values)), s2.MaxEncodedLen(4*len(values)))
	coded, decoded := make([]byte, 0, room), make([]float32, len(values))
	return method{name, bound, func(context.Context) (s Sample, err error) {
		if s.Encode, err = rateOf(len(values), func() error { coded = encode(coded[:0], values); return nil }); err != nil {
			return s, err
		}
		if s.Decode, err = rateOf(len(values), func() error { return decode(decoded, coded) }); err != nil {
			return s, err
		}
		s.Ratio = ratioOf(len(values), len(coded))
		return s, check(values, decoded, bound)
	}}
}

// least is how long one measurement in one direction takes at least.
const least = 20 * time.Millisecond

// rateOf returns the rate of the fastest of some runs.
func rateOf(values int, run func() error) (float64, error) {
	fastest := time.Duration(math.MaxInt64)
	began := now()
	for i := 0; i < 3 || now()-began < least; i++ {
		before := now()
		if err := run(); err != nil {
			return 0, err
		}
		fastest = min(fastest, now()-before)
	}
	return float64(4*values) / float64(max(1, fastest)), nil
}

// ratioOf is the length of values divided by that of their codes.
func ratioOf(values, bytes int) float64 { return float64(4*values) / float64(bytes) }

// check compares values with those that came back.
func check(values, decoded []float32, bound int) error {
	for i, v := range values {
		if off := math.Abs(float64(v) - float64(decoded[i])); off > 0 && off >= errorOf(bound) || off != off {
			return fmt.Errorf("value %d was %v and came back as %v", i, v, decoded[i])
		}
	}
	return nil
}

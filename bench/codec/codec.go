// SPDX-License-Identifier: Apache-2.0

// Package codec measures how fast gradients are shortened and restored on one core, by package codec and
// by general-purpose compression, and up to which rate of a line that pays. It is what 'libra bench
// codec' runs; docs/benchmarks.md describes it.
package codec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"

	"github.com/libra-ina/libra/bench/ring"
	"github.com/libra-ina/libra/codec"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/wire"
)

// What package codec is compared with. Neither loses anything.
const (
	Zstd   = "zstd"   // the fastest level
	Snappy = "snappy" // its block format
)

// Config is what to measure, and how often.
type Config struct {
	Values int
	Bounds []int // of package codec
	Rounds int

	// Progress, if not nil, is called before each measurement.
	Progress experiment.Progress
}

// Defaults returns the configuration that the documentation's figures are measured with.
func Defaults() Config { return Config{Values: 1 << 20, Bounds: []int{6, 8, 10}, Rounds: 9} }

func (c *Config) checkFields() error {
	return experiment.Check("codec", errors.Join(
		experiment.InRange("values", 1000, 100_000_000, c.Values),
		experiment.InRange("bound", codec.MinBound, codec.MaxBound, c.Bounds...),
		experiment.InRange("rounds", 1, 1000, c.Rounds)))
}

// method shortens values, and restores them.
type method struct {
	name   string
	encode func(dst []byte, values []float32) []byte
	decode func(values []float32, coded []byte) error
	bound  float64 // of the error
}

// Run measures. A value that comes back with a larger error than it may have ends the run. When ctx is
// done, Run returns what it has, if anything, and the cause.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.checkFields(); err != nil {
		return nil, err
	}
	methods, err := methodsOf(cfg)
	if err != nil {
		return nil, err
	}
	values := make([]float32, cfg.Values)
	ring.Gradients(values, 0)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var subjects []*experiment.Subject[Sample]
	for _, m := range methods {
		coded, decoded := make([]byte, 0, codec.MaxLen(cfg.Values)), make([]float32, cfg.Values)
		subjects = append(subjects, &experiment.Subject[Sample]{
			What:    m.name,
			Measure: func(context.Context) (Sample, error) { return m.measure(values, coded, decoded) },
		})
	}
	r := &Report{CPU: runtime.GOARCH, Values: cfg.Values, Rounds: cfg.Rounds}
	steps := experiment.ProgressCounter{Progress: cfg.Progress, Total: len(subjects) * cfg.Rounds}
	err = experiment.TakeTurns(ctx, cfg.Rounds, &steps, subjects)
	for i, s := range subjects {
		if len(s.Samples) > 0 {
			r.Results = append(r.Results, Result{Method: methods[i].name, ours: i < len(cfg.Bounds), Samples: s.Samples})
		}
	}
	if err != nil {
		err = fmt.Errorf("codec: %w", err)
		if len(r.Results) == 0 {
			return nil, err
		}
	}
	r.finish()
	return r, err
}

// methodsOf returns package codec with each bound, and the others.
func methodsOf(cfg Config) (all []method, err error) {
	for _, bound := range cfg.Bounds {
		c, err := codec.New(codec.Config{Bound: bound})
		if err != nil {
			return nil, err
		}
		all = append(all, method{
			name: fmt.Sprintf("2^-%d", bound), encode: c.Append, decode: c.Decode, bound: math.Ldexp(1, -bound),
		})
	}
	bytes := make([]byte, 4*cfg.Values)
	writer, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	reader, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	restored := func(values []float32, raw []byte, err error) error {
		if err == nil && len(raw) != 4*len(values) {
			err = fmt.Errorf("%d bytes came back of %d", len(raw), 4*len(values))
		}
		if err == nil {
			wire.Floats(values, raw)
		}
		return err
	}
	out := make([]byte, 0, 4*cfg.Values)
	compressed := make([]byte, s2.MaxEncodedLen(4*cfg.Values))
	return append(all, method{
		name: Zstd,
		encode: func(dst []byte, values []float32) []byte {
			wire.PutFloats(bytes, values)
			return writer.EncodeAll(bytes, dst)
		},
		decode: func(values []float32, coded []byte) error {
			raw, err := reader.DecodeAll(coded, out)
			return restored(values, raw, err)
		},
	}, method{
		name: Snappy,
		encode: func(_ []byte, values []float32) []byte {
			wire.PutFloats(bytes, values)
			return s2.EncodeSnappy(compressed, bytes)
		},
		decode: func(values []float32, coded []byte) error {
			raw, err := s2.Decode(out[:cap(out)], coded)
			return restored(values, raw, err)
		},
	}), nil
}

// least is how long one measurement takes at least.
const least = 20 * time.Millisecond

// measure encodes and decodes the values for some time each.
func (m *method) measure(values []float32, coded []byte, decoded []float32) (s Sample, err error) {
	rate := func(do func() error) (float64, error) {
		times := 0
		began := time.Now()
		for time.Since(began) < least {
			if err := do(); err != nil {
				return 0, err
			}
			times++
		}
		return float64(times) * float64(4*len(values)) / 1e9 / time.Since(began).Seconds(), nil
	}
	if s.Encode, err = rate(func() error { coded = m.encode(coded[:0], values); return nil }); err != nil {
		return s, err
	}
	if s.Decode, err = rate(func() error { return m.decode(decoded, coded) }); err != nil {
		return s, err
	}
	for i, v := range values {
		if off := math.Abs(float64(v) - float64(decoded[i])); off > 0 && off >= m.bound {
			return s, fmt.Errorf("value %d was %v and came back as %v", i, v, decoded[i])
		}
	}
	s.Ratio = float64(4*len(values)) / float64(len(coded))
	// Without codes a byte takes 1/line; with them, 1/encode + 1/(ratio·line) + 1/decode.
	s.Line = 8 * (1 - 1/s.Ratio) / (1/s.Encode + 1/s.Decode)
	return s, nil
}

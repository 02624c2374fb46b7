// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
)

// Method is an optimiser's update rule.
type Method uint8

const (
	// SGD subtracts LearningRate times the step's gradient.
	SGD Method = iota
	// Adagrad divides the learning rate by the root of the sum of the squared
	// gradients of all steps so far, for each parameter (Duchi, Hazan and
	// Singer 2011). Rare features keep a large rate, which suits sparse data,
	// and a step never moves a weight by more than LearningRate, however many
	// workers' gradients are merged in it.
	Adagrad
	// None keeps the initial weights. The store then holds only the rows of the open step, for
	// [Store.AppendSums], and forgets them at its end. Its sums are not rounded before that, nor out
	// of range. Its memory is that of the largest step, independent of the number of keys.
	None
)

func (m Method) String() string {
	switch m {
	case SGD:
		return "sgd"
	case Adagrad:
		return "adagrad"
	case None:
		return "none"
	}
	return fmt.Sprintf("Method(%d)", uint8(m))
}

// ParseMethod is the inverse of [Method.String].
func ParseMethod(s string) (Method, error) {
	for _, m := range []Method{SGD, Adagrad, None} {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("ps: unknown optimiser %q; choose sgd, adagrad or none", s)
}

// The defaults of an [Optimizer] and of [Init].
const (
	DefaultLearningRate       = 0.05
	DefaultEpsilon            = 1e-8
	DefaultInitialAccumulator = 1e-4
	DefaultScale              = 0.01
)

// Optimizer determines how a step's gradients change the weights.
type Optimizer struct {
	// Method is the update rule; SGD by default.
	Method Method
	// LearningRate scales every update; 0 means [DefaultLearningRate].
	LearningRate float32
	// Epsilon is added to Adagrad's root; 0 means [DefaultEpsilon].
	Epsilon float32
	// InitialAccumulator is the initial value of Adagrad's sum of squares; 0 means
	// [DefaultInitialAccumulator]. It damps the first updates of a parameter
	// whose gradients are smaller than its root.
	InitialAccumulator float32
}

// Init determines the weights of a row before its first update: column 0 is zero and
// the others are uniform in [-Scale, Scale). They depend only on Seed, the key and the
// column, so a row without updates needs no memory.
type Init struct {
	// Scale bounds the initial weights; 0 means [DefaultScale].
	Scale float32
	Seed  uint64
}

const (
	// DefaultExp is the default exponent of a job: the unit is 2^-46.
	DefaultExp = fixedpoint.DefaultExp
	// DefaultMaxRows is the default of Config.MaxRows.
	DefaultMaxRows = 1 << 26
	// MaxRows is the largest Config.MaxRows.
	MaxRows = math.MaxInt32
)

// Config describes a [Store].
type Config struct {
	// Dim is the number of floats in a row, 1 to 65535.
	Dim int
	// Exp is the exponent of the job's fixed-point format: one unit is 2^Exp, even
	// if Exp is 0. [DefaultExp] suits gradients.
	Exp int
	// Optimizer is applied by [Store.Commit].
	Optimizer Optimizer
	// Init determines the weights of rows without updates.
	Init Init
	// MaxRows is the number of rows, 1 to [MaxRows], from which on gradients of new
	// rows are refused; 0 means [DefaultMaxRows]. A store without an optimiser counts
	// the rows of the step, others all rows. Harvests are always accepted, and so are gradients of the
	// rows of [Store.TakeAlways]: the store may exceed the limit by the rows of the hot set.
	MaxRows int
	// Capacity is the number of rows to allocate in advance. The store grows beyond it.
	Capacity int
}

// normal returns c with defaults, or an error that names the invalid field.
func (c Config) normal() (Config, error) {
	if _, err := fixedpoint.NewFormat(c.Exp); err != nil {
		return c, fmt.Errorf("ps: %w", err)
	}
	if c.Dim < 1 || c.Dim > math.MaxUint16 {
		return c, fmt.Errorf("ps: row dimension %d is not in [1, %d]", c.Dim, math.MaxUint16)
	}
	if c.Optimizer.Method > None {
		return c, fmt.Errorf("ps: unknown optimiser %v", c.Optimizer.Method)
	}
	c.MaxRows = cmp.Or(c.MaxRows, DefaultMaxRows)
	if c.MaxRows < 1 || c.MaxRows > MaxRows {
		return c, fmt.Errorf("ps: a bound of %d rows is not in [1, %d]", c.MaxRows, MaxRows)
	}
	if c.Capacity < 0 || c.Capacity > c.MaxRows {
		return c, fmt.Errorf("ps: capacity of %d rows is not in [0, %d]", c.Capacity, c.MaxRows)
	}
	for _, f := range []struct {
		name     string
		value    *float32
		fallback float32
	}{
		{"learning rate", &c.Optimizer.LearningRate, DefaultLearningRate},
		{"epsilon", &c.Optimizer.Epsilon, DefaultEpsilon},
		{"initial accumulator", &c.Optimizer.InitialAccumulator, DefaultInitialAccumulator},
		{"initial scale", &c.Init.Scale, DefaultScale},
	} {
		*f.value = cmp.Or(*f.value, f.fallback)
		if v := float64(*f.value); math.Signbit(v) || math.IsNaN(v) || math.IsInf(v, 0) {
			return c, fmt.Errorf("ps: %s %g is not a positive number", f.name, *f.value)
		}
	}
	return c, nil
}

var (
	// ErrOverflow means that a sum would leave the fixed-point format's range.
	ErrOverflow = errors.New("ps: sum out of the fixed-point range")
	// ErrFull means that a store has reached its maximum number of rows.
	ErrFull = errors.New("ps: the store holds as many rows as Config.MaxRows (server.max_rows) allows")
)

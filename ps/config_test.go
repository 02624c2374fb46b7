// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math"
	"strings"
	"testing"
)

// TestConfigLimits creates stores at both ends of each range and one step beyond; the error names
// the field, the value and the range.
func TestConfigLimits(t *testing.T) {
	for name, c := range map[string]struct {
		cfg    Config
		refuse string // part of the error; empty: accepted
	}{
		"one column":        {Config{Dim: 1}, ""},
		"all columns":       {Config{Dim: math.MaxUint16}, ""},
		"no columns":        {Config{Dim: 0}, "ps: row dimension 0 is not in [1, 65535]"},
		"more columns":      {Config{Dim: math.MaxUint16 + 1}, "ps: row dimension 65536 is not in [1, 65535]"},
		"least exponent":    {Config{Dim: 1, Exp: -100}, ""},
		"greatest exponent": {Config{Dim: 1, Exp: 60}, ""},
		"exponent":          {Config{Dim: 1, Exp: 61}, "exponent 61 is not in [-100, 60]"},
		"optimiser":         {Config{Dim: 1, Optimizer: Optimizer{Method: None + 1}}, "ps: unknown optimiser"},
		"rows":              {Config{Dim: 1, MaxRows: 1}, ""},
		"all rows":          {Config{Dim: 1, MaxRows: MaxRows}, ""},
		"negative rows":     {Config{Dim: 1, MaxRows: -1}, "ps: a bound of -1 rows is not in [1, "},
		"more rows":         {Config{Dim: 1, MaxRows: MaxRows + 1}, "rows is not in [1, "},
		"full capacity":     {Config{Dim: 1, MaxRows: 8, Capacity: 8}, ""},
		"capacity":          {Config{Dim: 1, MaxRows: 8, Capacity: 9}, "ps: capacity of 9 rows is not in [0, 8]"},
		"learning rate":     {Config{Dim: 1, Optimizer: Optimizer{LearningRate: -1}}, "ps: learning rate -1 is not a positive number"},
		"epsilon":           {Config{Dim: 1, Optimizer: Optimizer{Epsilon: -2}}, "ps: epsilon -2 is not a positive number"},
		"accumulator":       {Config{Dim: 1, Optimizer: Optimizer{InitialAccumulator: -3}}, "ps: initial accumulator -3 is not a positive number"},
		"scale":             {Config{Dim: 1, Init: Init{Scale: float32(math.Inf(1))}}, "ps: initial scale +Inf is not a positive number"},
	} {
		s, err := New(c.cfg)
		if c.refuse == "" {
			if err != nil || s == nil {
				t.Errorf("%s: %v", name, err)
			}
		} else if err == nil || s != nil || !strings.Contains(err.Error(), c.refuse) {
			t.Errorf("%s: %v, want %q", name, err, c.refuse)
		}
	}
}

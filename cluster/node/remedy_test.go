// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/train/data"
	"github.com/libra-ina/libra/wire"
)

// An error of gradients that no arithmetic takes has what to do about it, by the model's task. Others stay as they are.
func TestRemedyOfLargeGradients(t *testing.T) {
	const diverges, labels = ", because training diverges: lower the learning rate", ": divide the labels by a number such as their standard deviation, or lower the learning rate"
	infinite := &packer.NotFiniteError{Index: 3, Key: 77, Value: 5}
	for name, c := range map[string]struct {
		err    error
		begins string
		large  bool
	}{
		"overflow":   {fmt.Errorf("a push: %w", wire.Refusal{Code: wire.CodeOverflow}), "a push: ", true},
		"not finite": {fmt.Errorf("a push: %w", wire.Refusal{Code: wire.CodeNotFinite}), "a push: ", true},
		"found here": {fmt.Errorf("a push: %w", infinite), "a gradient of feature 77 is 5: ", true},
		"refused":    {fmt.Errorf("a push: %w", wire.Refusal{Code: wire.CodeSlotRange}), "", false},
		"another":    {io.ErrUnexpectedEOF, "", false},
	} {
		for task, remedy := range map[data.Task]string{data.Classification: diverges, data.Regression: labels} {
			got := withRemedy(c.err, task)
			if !c.large {
				if got != c.err { //nolint:errorlint // it is the same one
					t.Errorf("%s, %v: %v becomes %v", name, task, c.err, got)
				}
				continue
			}
			if !strings.HasPrefix(got.Error(), c.begins) || !strings.HasSuffix(got.Error(), ": gradients are too large"+remedy) || strings.Contains(got.Error(), "put a finite number there") {
				t.Errorf("%s, %v: %v, want one that begins with %q and ends with %q", name, task, got, c.begins, remedy)
			}
		}
	}
}

// Rows of an unknown task are not opened.
func TestRowsOfAnUnknownTask(t *testing.T) {
	c := &cluster.Config{Model: cluster.Model{Task: "guess"}, Data: cluster.Data{Synthetic: &cluster.Synthetic{Rows: 1}}}
	if src, err := OpenSource(c, data.Shard{}); src != nil || err == nil || !strings.Contains(err.Error(), "guess") {
		t.Errorf("%v, %v", src, err)
	}
}

// A worker of a job without training rows is told where they could come from.
func TestNoTrainingRows(t *testing.T) {
	if _, err := OpenSource(&cluster.Config{Model: cluster.Model{Task: data.Regression.String()}}, data.Shard{}); err == nil ||
		!strings.Contains(err.Error(), "give data.train (a file) or data.synthetic, or let processes train through 'libra agent'") {
		t.Errorf("%v", err)
	}
}

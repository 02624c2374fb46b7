// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"math"
	"strings"
	"testing"
)

// TestSyntheticRange validates a log that a program describes, to which the rules
// about written zeros do not apply.
func TestSyntheticRange(t *testing.T) {
	c, err := Read(write(t, strings.Replace(valid, "train: train.libfm", "synthetic: {rows: 3, hot: 6, hot_share: 0.25}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	for share, good := range map[float64]bool{
		0: false, 1: false, -0.1: false, 1.1: false, math.Inf(1): false, math.NaN(): false,
		math.SmallestNonzeroFloat64: true, math.Nextafter(1, 0): true,
	} {
		c.Data.Synthetic.HotShare = share
		if err := c.Validate(); (err == nil) != good || err != nil && !strings.Contains(err.Error(), "data.synthetic.hot_share: ") {
			t.Errorf("share %g: %v", share, err)
		}
	}
	c.Data.Synthetic.HotShare = 0.5
	for field, at := range map[string]*int{"rows": &c.Data.Synthetic.Rows, "hot": &c.Data.Synthetic.Hot} {
		old := *at
		for value, good := range map[int]bool{-1: false, 0: false, 1: true} {
			*at = value
			if err := c.Validate(); (err == nil) != good || err != nil && !strings.Contains(err.Error(), "data.synthetic."+field+": ") {
				t.Errorf("%s %d: %v", field, value, err)
			}
		}
		*at = old
	}
}

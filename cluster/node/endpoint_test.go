// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/packer"
)

// A worker lays its frames out as the aggregator that admitted it expects them.
func TestLayoutIsTheAdmissions(t *testing.T) {
	for dense, want := range map[bool]packer.Layout{true: packer.Dense, false: packer.LaneAligned} {
		if got := layout(&control.Membership{Dense: dense}); got != want {
			t.Errorf("dense %v: %v, want %v", dense, got, want)
		}
	}
}

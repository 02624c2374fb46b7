// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"testing"

	"github.com/libra-ina/libra/aggregator/conformance"
)

// Directed frames for what random ones seldom reach in each lane.
func TestLanesEqualModel(t *testing.T) {
	t.Parallel()
	conformance.TestLanes(t, pair(t, openWithLUT(t, nil), jobs[:1]), 1)
}

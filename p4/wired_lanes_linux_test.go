// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"testing"

	"github.com/libra-ina/libra/aggregator/conformance"
)

func TestSwitchLanesEqualModel(t *testing.T) {
	conformance.TestLanes(t, pair(t, openWired(t, nil), jobs[:1]), 1)
}

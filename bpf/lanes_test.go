// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"fmt"
	"testing"

	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/wire"
)

// Directed frames for what random ones seldom reach in each lane, of one stripe and of several.
func TestLanesEqualModel(t *testing.T) {
	for _, stripes := range []int{1, wire.DefaultStripes} {
		t.Run(fmt.Sprint(stripes), func(t *testing.T) { conformance.TestLanes(t, openPair(t), stripes) })
	}
}

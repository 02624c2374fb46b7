// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"testing"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/link/linktest"
)

// TestMemLink checks that the in-memory network of this package's tests keeps the contract of
// links.
func TestMemLink(t *testing.T) {
	linktest.Suite{Open: func(*testing.T) (a, b link.Link) {
		network := newMemNet()
		return network.open("10.0.0.1:1"), network.open("10.0.0.2:1")
	}}.Run(t)
}

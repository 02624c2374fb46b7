// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// A selection of no mutant is no success.
func TestOnlyMatchesAMutant(t *testing.T) {
	t.Chdir("../..")
	_, err := run(t.Context(), options{packages: xdp, only: "no such line"})
	if err == nil || !strings.Contains(err.Error(), `"no such line"`) {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	for _, names := range []string{"", "wire", "./wire/,lut"} {
		if _, err := choose(names); err != nil {
			t.Error(err)
		}
	}
	if _, err := choose("wires"); err == nil || !strings.Contains(err.Error(), `"wires"`) {
		t.Errorf("an unknown package: %v", err)
	}
}

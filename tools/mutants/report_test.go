// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestReportOfNothing(t *testing.T) {
	text := (counts{Package: "wire"}).String()
	if !strings.Contains(text, "no mutant was tried") || strings.Contains(text, "%") {
		t.Errorf("the report is %q", text)
	}
}

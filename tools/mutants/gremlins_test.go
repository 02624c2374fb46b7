// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestGremlinsReport(t *testing.T) {
	_, p := loadSample(t)
	report := `{"files": [
		{"file_name": "sample.go", "mutations": [
			{"type": "CONDITIONALS_BOUNDARY", "status": "NOT COVERED", "line": 8, "column": 7},
			{"type": "INCREMENT_DECREMENT", "status": "NOT COVERED", "line": 18, "column": 22}]},
		{"file_name": "elsewhere_darwin.go", "mutations": [{"type": "INVERT_LOGICAL", "line": 1, "column": 1}]}]}`
	mutants, err := p.translateReport(strings.NewReader(report))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mutants {
		got = append(got, m.New)
	}
	if want := []string{"if n >= limit {", "for i := n; i > 0; i++ {"}; !slices.Equal(got, want) {
		t.Errorf("mutants %q, want %q", got, want)
	}
	wrong := `{"files": [{"file_name": "sample.go", "mutations": [{"type": "INVERT_LOGICAL", "line": 1, "column": 1}]}]}`
	if _, err := p.translateReport(strings.NewReader(wrong)); err == nil || !strings.Contains(err.Error(), "sample.go:1:1") {
		t.Errorf("an operator where none is: %v", err)
	}
}

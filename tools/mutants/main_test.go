// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"
)

func TestSampleIsDeterministic(t *testing.T) {
	draws := map[string]bool{}
	for _, seed := range []uint64{1, 1, 2} {
		_, mutants := sampleMutants(t)
		unfit := mutants[2]
		drawn := draw(mutants, func(m *mutant) bool { return m != unfit }, options{sample: 3, seed: seed})
		if len(drawn) != 3 || !slices.IsSortedFunc(drawn, byPlace) {
			t.Fatalf("seed %d: %v", seed, drawn)
		}
		if slices.Contains(drawn, unfit) {
			t.Error("what does not compile is drawn")
		}
		var names []string
		for _, m := range drawn {
			names = append(names, m.String())
		}
		draws[strings.Join(names, "\n")] = true
	}
	if len(draws) != 2 {
		t.Errorf("%d samples of two seeds", len(draws))
	}
	_, mutants := sampleMutants(t)
	unfit := mutants[2]
	all := draw(mutants, func(m *mutant) bool { return m != unfit }, options{})
	if len(all) != len(mutants)-1 || slices.Contains(all, unfit) {
		t.Errorf("all that compile: %v", all)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"testing"
)

// TestXDPListMatches finds the text of each entry in the program, once.
func TestXDPListMatches(t *testing.T) {
	root, err := filepath.Abs(libra)
	if err != nil {
		t.Fatal(err)
	}
	mutants, err := xdpMutants(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(mutants) < 80 {
		t.Errorf("%d mutants", len(mutants))
	}
	for _, m := range mutants {
		if m.Line < 1 || m.Column < 1 {
			t.Errorf("%v is nowhere", m)
		}
	}
}

func TestSplitWords(t *testing.T) {
	got := splitWords(`bpf2go -cc clang-16 -cflags "-O2 -Wall" -x`)
	if want := []string{"bpf2go", "-cc", "clang-16", "-cflags", "-O2 -Wall", "-x"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

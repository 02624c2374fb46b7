// SPDX-License-Identifier: Apache-2.0

package data

import (
	"fmt"
	"strings"
	"testing"
)

// A file with labels or pairs of two kinds is refused for every worker, at the same line, even if
// each of them has rows of one kind.
func TestKindsAgreeAcrossShards(t *testing.T) {
	mixed := func(n int, row func(i int) string) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintln(&text, row(i))
		}
		return text.String()
	}
	labels := mixed(40, func(i int) string { return [4]string{"1 3:1", "1 3:1", "0 4:1", "-1 4:1"}[i%4] })
	colons := mixed(40, func(i int) string { return [2]string{"1 3:1", "1 1:4:1"}[i%2] })
	for _, c := range []struct {
		name, text string
		task       Task
		want       string // "": accepted
	}{
		{"labels", labels, Classification, ":4:1: label -1 in a file whose negative label is 0: write one of them"},
		{"labels of regression", labels, Regression, ""},
		{"colons", colons, Classification, `:2:3: "1:4:1" has 2 colons`},
		{"colons of regression", colons, Regression, `:2:3: "1:4:1" has 2 colons`},
		{"a row without pairs", "1\n0\n1\n0 3:1\n", Classification, ""},
		{"one kind", "1 3:1\n-1 3:1\n1.0 4:1\n-1e0 4:1\n", Classification, ""},
	} {
		name := write(t, c.text)
		for _, count := range []int{1, 2, 4} {
			for index := range count {
				f, err := OpenFile(name, c.task, Shard{index, count})
				if err != nil {
					t.Fatal(err)
				}
				_, err = Load(f)
				if closed := f.Close(); closed != nil {
					t.Error(closed)
				}
				if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), name+c.want) {
					t.Errorf("%s, shard %d of %d: %v, want %q", c.name, index, count, err, c.want)
				}
			}
		}
	}
	// The remedies.
	if _, err := Load(open(t, write(t, strings.ReplaceAll(labels, "-1 ", "0 ")), Shard{1, 2})); err != nil {
		t.Error(err)
	}
}

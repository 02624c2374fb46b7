// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"slices"
	"testing"
)

// A socket's buffer is the largest of the repeatedly halved sizes that the system allows, down to
// one that any system has.
func TestLargestBuffer(t *testing.T) {
	tooLarge := errors.New("too large")
	for _, c := range []struct {
		ask, allowed, want int
		tried              []int
	}{
		{1 << 20, 1 << 20, 1 << 20, []int{1 << 20}},
		{1 << 20, 1<<20 - 1, 1 << 19, []int{1 << 20, 1 << 19}},
		{1 << 18, 1 << 16, 1 << 16, []int{1 << 18, 1 << 17, 1 << 16}},
		{1 << 18, 0, 1 << 15, []int{1 << 18, 1 << 17, 1 << 16}},
		{1<<16 - 1, 1 << 20, 1<<16 - 1, nil},
	} {
		var tried []int
		got := largest(c.ask, func(n int) error {
			tried = append(tried, n)
			if n > c.allowed {
				return tooLarge
			}
			return nil
		})
		if got != c.want || !slices.Equal(tried, c.tried) {
			t.Errorf("%d bytes where %d are allowed: %d, after %v; want %d, after %v", c.ask, c.allowed, got, tried, c.want, c.tried)
		}
	}
}

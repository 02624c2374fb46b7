package sample

import (
	"errors"
	"slices"
)

// Same has arguments whose order does not matter.
func Same(a, b []int, err, other error) bool {
	return slices.Equal(a, b) && errors.Is(err, other) && min(len(a), len(b)) > 0
}

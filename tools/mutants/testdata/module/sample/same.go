package sample

import (
	"errors"
	"fmt"
	"slices"
)

// Same has arguments whose order does not matter.
func Same(a, b []int, err, other error) bool {
	return slices.Equal(a, b) && errors.Is(err, other) && min(len(a), len(b)) > 0
}

// Both has errors in an order that only their text shows.
func Both(err error, close func() error) error {
	return errors.Join(err, close(), fmt.Errorf("and %w", err))
}

// InTurn does two things, one after the other.
func InTurn(first, second func() error) error {
	return errors.Join(first(), second())
}

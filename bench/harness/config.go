package harness

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// ErrConfig is wrapped by errors about an experiment's configuration.
var ErrConfig = errors.New("invalid configuration")

// InRange returns an error that wraps [ErrConfig] unless all values are within
// limits. name is a plural noun, such as "rounds".
func InRange[T cmp.Ordered](name string, least, most T, values ...T) error {
	for _, v := range values {
		if !(v >= least && v <= most) { // NaN is not
			return fmt.Errorf("%w: %v %s, want %v to %v", ErrConfig, v, name, least, most)
		}
	}
	return nil
}

// Known returns an error that wraps [ErrConfig] unless all values are among the
// known ones. name is a singular noun, such as "test".
func Known[T comparable](name string, known []T, values ...T) error {
	for _, v := range values {
		if !slices.Contains(known, v) {
			return fmt.Errorf("%w: no %s %q; there are %v", ErrConfig, name, fmt.Sprint(v), known)
		}
	}
	return nil
}

package harness

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrConfig is wrapped by errors about an experiment's configuration.
var ErrConfig = errors.New("invalid configuration")

// ErrUnsupported is the error of experiments that need Linux where there is none.
var ErrUnsupported = fmt.Errorf("network namespaces and XDP exist on Linux only: %w", errors.ErrUnsupported)

// Check joins what is wrong with the configuration of an experiment, under its name.
func Check(experiment string, errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", experiment, err)
	}
	return nil
}

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

// Close closes what was opened: it does nothing to a nil pointer.
func Close[T any, P interface {
	*T
	io.Closer
}](p P) error {
	if p == nil {
		return nil
	}
	return p.Close()
}

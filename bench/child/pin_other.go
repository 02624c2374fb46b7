//go:build !linux

package child

import (
	"errors"
	"fmt"
)

func pin(cpus []int) error {
	return fmt.Errorf("child: pin to CPUs %v: %w", cpus, errors.ErrUnsupported)
}

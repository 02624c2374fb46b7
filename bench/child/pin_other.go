//go:build !linux

package child

import (
	"errors"
	"fmt"
)

func pin(cpu int) error {
	return fmt.Errorf("child: pin to CPU %d: %w", cpu, errors.ErrUnsupported)
}

// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package sys

import (
	"errors"
	"fmt"
)

// PinProcess returns [errors.ErrUnsupported] except on Linux.
func PinProcess(cpu int) error { return fmt.Errorf("pin to CPU %d: %w", cpu, errors.ErrUnsupported) }

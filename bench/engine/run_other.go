//go:build !linux

package engine

import (
	"context"
	"errors"
	"fmt"
)

// ErrUnsupported is returned where there is no Linux.
var ErrUnsupported = fmt.Errorf("engine: XDP exists on Linux only: %w", errors.ErrUnsupported)

// Run returns ErrUnsupported.
func Run(context.Context, Config) (*Report, error) { return nil, ErrUnsupported }

// RunChild returns ErrUnsupported.
func RunChild([]string) error { return ErrUnsupported }

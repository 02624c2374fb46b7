//go:build !linux

package push

import (
	"context"
	"errors"
	"fmt"
)

// ErrUnsupported is returned where there is no Linux.
var ErrUnsupported = fmt.Errorf("push: network namespaces and AF_XDP exist on Linux only: %w", errors.ErrUnsupported)

// Run returns ErrUnsupported.
func Run(context.Context, Config) (*Report, error) { return nil, ErrUnsupported }

// RunChild returns ErrUnsupported.
func RunChild([]string) error { return ErrUnsupported }

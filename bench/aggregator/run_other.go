//go:build !linux

package aggregator

import (
	"context"
	"errors"
	"fmt"
)

// ErrUnsupported is returned where there is no Linux.
var ErrUnsupported = fmt.Errorf("aggregator benchmark: XDP exists on Linux only: %w", errors.ErrUnsupported)

func (h *run) cost(context.Context) error       { return ErrUnsupported }
func (h *run) throughput(context.Context) error { return ErrUnsupported }

func xdpSite(context.Context, int) (*site, error) { return nil, ErrUnsupported }

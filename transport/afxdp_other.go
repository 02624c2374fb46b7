//go:build !linux

package transport

import (
	"errors"
	"fmt"
)

// OpenAFXDP fails: AF_XDP is a part of Linux.
func OpenAFXDP(AFXDPConfig) (Link, error) {
	return nil, fmt.Errorf("transport: afxdp link: AF_XDP needs Linux; use the udp backend: %w", errors.ErrUnsupported)
}

// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package link

import (
	"errors"
	"fmt"
)

// OpenAFXDP fails: AF_XDP is a part of Linux.
func OpenAFXDP(AFXDPConfig) (Link, error) {
	return nil, fmt.Errorf("link: afxdp: AF_XDP needs Linux; use the udp backend: %w", errors.ErrUnsupported)
}

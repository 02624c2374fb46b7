// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"io/fs"
	"strings"
)

// ErrConfig is wrapped by errors of [New] about its Config.
var ErrConfig = errors.New("testbed: invalid configuration")

// ErrClosed is returned by a [Node]'s methods after [Bed.Close].
var ErrClosed = errors.New("testbed: bed is closed")

// CapabilityError names the missing privileges to build a bed. errors.Is(err, fs.ErrPermission)
// holds for it.
type CapabilityError struct {
	Missing []string // e.g. "CAP_NET_ADMIN"
}

// Error names the missing capabilities and the remedy.
func (e *CapabilityError) Error() string {
	return "testbed: making network namespaces and interfaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN; missing here: " +
		strings.Join(e.Missing, ", ") + "; run as root"
}

// Unwrap returns fs.ErrPermission.
func (e *CapabilityError) Unwrap() error { return fs.ErrPermission }

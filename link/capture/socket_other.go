// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package capture

import (
	"errors"
	"fmt"
	"net"
)

var errLinux = fmt.Errorf("capturing a running process needs Linux; "+
	"the field capture in the cluster configuration records into files anywhere: %w", errors.ErrUnsupported)

func listen(int) (*net.UnixListener, error) { return nil, errLinux }

func peer(*net.UnixConn) (uid, pid int, err error) { return 0, 0, errLinux }

func dial(int) (*net.UnixConn, error) { return nil, errLinux }

// List fails: processes can be found under Linux only.
func List() ([]Source, error) { return nil, errLinux }

// SPDX-License-Identifier: Apache-2.0

// Package filelock gives a file to one process at a time.
package filelock

import "errors"

// ErrLocked means that another holder has locked a file.
var ErrLocked = errors.New("another process has it")

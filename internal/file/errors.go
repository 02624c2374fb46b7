// SPDX-License-Identifier: Apache-2.0

package file

import "errors"

// ErrNotRegular means that a path leads to a folder, a device, a pipe or a socket.
var ErrNotRegular = errors.New("not a regular file")

// ErrLocked means that another holder has locked a file.
var ErrLocked = errors.New("locked by another process")

// SPDX-License-Identifier: Apache-2.0

package file

import "errors"

// ErrLocked means that another holder has locked a file.
var ErrLocked = errors.New("locked by another process")

// SPDX-License-Identifier: Apache-2.0

package file

import (
	"fmt"
	"io/fs"
	"os"
)

// Open opens a regular file for reading; symbolic links are followed. Opening a pipe without a
// writer, or reading some devices, would never return, and no context can end it.
func Open(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("%w (%v)", ErrNotRegular, info.Mode().Type())}
	}
	return os.Open(path)
}

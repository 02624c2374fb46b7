// SPDX-License-Identifier: Apache-2.0

//go:build unix

package file

import (
	"io/fs"
	"os"
	"syscall"
)

// ownerOf returns the owner of a file, and its number of links.
func ownerOf(info fs.FileInfo) (uid, names int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(s.Uid), int(s.Nlink), true
}

// openItself opens a file or a folder, but does not follow symbolic links, nor wait for the writer
// of a pipe.
func openItself(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

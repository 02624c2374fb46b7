// SPDX-License-Identifier: Apache-2.0

// Package sudo leaves what root makes on behalf of a user to that user: without it, one who
// types "sudo make demo" cannot remove or write what it has left.
//
// The user is who SUDO_UID and SUDO_GID name. A folder that MkdirAll makes is the user's; a
// file is, if its folder is. So nothing that root wrote into a folder of its own changes hands.
// Without sudo, or without root's rights, the functions give nothing away.
package sudo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// user returns the ids of the user that root acts for.
func user() (uid, gid int, ok bool) {
	if os.Geteuid() != 0 {
		return 0, 0, false
	}
	uid, err := strconv.Atoi(os.Getenv("SUDO_UID"))
	if err != nil {
		return 0, 0, false
	}
	gid, err = strconv.Atoi(os.Getenv("SUDO_GID"))
	return uid, gid, err == nil
}

// MkdirAll is os.MkdirAll. Each folder that it makes is the user's.
func MkdirAll(dir string, mode fs.FileMode) error {
	uid, gid, ok := user()
	if !ok {
		return os.MkdirAll(dir, mode)
	}
	var missing []string // the deepest first
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Lstat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, d)
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	for _, d := range missing {
		if err := give(d, uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// Give gives a file that was just written to the user, if its folder is the user's.
func Give(file string) error {
	uid, gid, ok := user()
	if !ok {
		return nil
	}
	folder, err := os.Stat(filepath.Dir(file))
	if err != nil {
		return err
	}
	if owner, _, known := ownerOf(folder); !known || owner != uid {
		return nil
	}
	return give(file, uid, gid)
}

// give changes the owner of the file or folder that has a path now. One that has other names, too, stays as it is:
// it was not made here.
func give(path string, uid, gid int) error {
	f, err := openItself(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, names, _ := ownerOf(info); !info.IsDir() && (!info.Mode().IsRegular() || names != 1) {
		return nil
	}
	if err := f.Chown(uid, gid); err != nil {
		return fmt.Errorf("give it to the user of sudo: %w", err)
	}
	return nil
}

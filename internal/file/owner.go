// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// sudoUser returns the ids of the user that root acts for.
func sudoUser() (uid, gid int, ok bool) {
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

// MkdirAll is os.MkdirAll, but the folders that it creates become the user's.
func MkdirAll(dir string, mode fs.FileMode) error {
	uid, gid, ok := sudoUser()
	if !ok {
		return os.MkdirAll(dir, mode)
	}
	missing := Missing(dir)
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

// Missing returns the folders that MkdirAll would create, the deepest first.
func Missing(dir string) (missing []string) {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Lstat(d); !errors.Is(err, fs.ErrNotExist) {
			return missing
		}
		missing = append(missing, d)
	}
}

// Give gives a file that was just written to the user, if its folder is the user's.
func Give(file string) error {
	uid, gid, ok := sudoUser()
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

// give changes the owner of the file or folder at a path. A file with other links is not changed:
// it was not created here.
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

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/libra-ina/libra/internal/file"
)

// checkOutput refuses a file to write, --out, that is a folder or a device, has no folder, or would
// replace one of the files that are read.
func checkOutput(cmd *cobra.Command, out string, read ...string) error {
	if _, err := os.Stat(filepath.Dir(out)); err != nil {
		return fmt.Errorf("--out: %w: make that folder, or choose a different one", err)
	}
	info, err := os.Stat(out)
	if err != nil {
		return writable(out, out) // a new file
	}
	if info.IsDir() {
		return fmt.Errorf("--out: %s is a folder: give the name of a file in it", out)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("--out: %s is a device or a pipe: give the name of a file", out)
	}
	for _, path := range read {
		if other, err := os.Stat(path); err == nil && os.SameFile(info, other) {
			return usagef(cmd, "--out %s: this file is read, and would be lost: choose a different one", out)
		}
	}
	return writable(out, out)
}

// writable reports why a file cannot be written, before the work for it is done. It is part of, or
// is, what --out names.
func writable(path, out string) error {
	err := file.Prepare(path, "."+rand.Text()+".tmp")
	if trial := (*fs.PathError)(nil); errors.As(err, &trial) {
		err = trial.Err // without its name
	}
	if err != nil {
		return fmt.Errorf("--out: %s cannot be written: %w", out, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/libra-ina/libra/internal/linux/sys"
)

// threadNAPI makes interfaces receive in their own kernel threads (Linux 5.12), and returns a
// function that restores them. A veth has receive work only while it has an XDP program, so attach
// first.
func threadNAPI(interfaces []string) (restore func() error, err error) {
	var undo []func() error
	restore = func() error {
		var errs []error
		for _, f := range undo {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	for _, name := range interfaces {
		before, err := sys.ReadAttr(name, "threaded")
		if err == nil {
			err = sys.WriteAttr(name, "threaded", "1")
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("threaded NAPI on %s (switch.threaded_napi): %w", name, err), restore())
		}
		undo = append(undo, func() error {
			if err := sys.WriteAttr(name, "threaded", before); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil // the interface is gone
		})
	}
	return restore, nil
}

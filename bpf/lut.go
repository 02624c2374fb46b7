// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"github.com/libra-ina/libra/lut"
)

// tablesImage returns the default tables of package lut as struct lut of lut.h. Building them takes
// a tenth of a second.
var tablesImage = sync.OnceValues(func() ([]byte, error) {
	t, err := lut.New(lut.Config{})
	if err != nil {
		return nil, err
	}
	return t.Image(binary.NativeEndian), nil
})

// lookupTables fills the program's tables, which only jobs with LUT arithmetic need.
type lookupTables struct {
	mu     sync.Mutex
	filled bool
}

// fillTables writes the program's tables unless they are already written.
func (t *lookupTables) fillTables(tables *ebpf.Map) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.filled {
		return nil
	}
	image, err := tablesImage()
	if err != nil {
		return err
	}
	if err := tables.Put(uint32(0), image); err != nil {
		return fmt.Errorf("fill lookup tables: %w", err)
	}
	t.filled = true
	return nil
}

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

// tablesImage returns the default tables of package lut as struct lut of lut.h.
// They take a tenth of a second to make.
var tablesImage = sync.OnceValues(func() ([]byte, error) {
	t, err := lut.New(lut.Config{})
	if err != nil {
		return nil, err
	}
	return t.Image(binary.NativeEndian), nil
})

// lookupTables are the program's, which only jobs with LUT arithmetic need. They
// are always the same.
type lookupTables struct {
	mu     sync.Mutex
	filled bool
}

// fill gives the program its tables, if it has none yet.
func (t *lookupTables) fill(tables *ebpf.Map) error {
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

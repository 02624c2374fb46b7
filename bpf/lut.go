//go:build linux

package bpf

import (
	"encoding/binary"
	"fmt"
	"sync"

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

// fillTables gives the program its lookup tables, which only the first job with
// LUT arithmetic needs. They are always the same. The caller holds the lock.
func (a *Aggregator) fillTables() error {
	if a.filled {
		return nil
	}
	image, err := tablesImage()
	if err != nil {
		return err
	}
	if err := a.objects.Tables.Put(uint32(0), image); err != nil {
		return fmt.Errorf("fill lookup tables: %w", err)
	}
	a.filled = true
	return nil
}

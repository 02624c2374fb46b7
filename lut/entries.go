// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
)

// Entry is a table entry for a P4 control plane.
type Entry struct {
	// Table is a name of [Table], or "norm".
	Table string `json:"table"`
	// Key is matched exactly; in table norm, its leading Prefix bits of 25.
	Key    uint32 `json:"key"`
	Prefix int    `json:"prefix,omitempty"`
	// Value is the entry; in table norm, [Prefix.Length].
	Value uint32 `json:"value"`
}

// Entries yields the entries of all tables, in the order of [Adder.Tables] and
// of their keys, and then those of [NormTable].
func (t *Adder) Entries() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		for _, table := range t.Tables() {
			for key, v := range table.Values {
				if !yield(Entry{Table: table.Name, Key: uint32(key), Value: v}) {
					return
				}
			}
		}
		for _, p := range NormTable() {
			if !yield(Entry{Table: "norm", Key: p.Key, Prefix: p.Bits, Value: uint32(p.Length)}) {
				return
			}
		}
	}
}

// WriteEntries writes the entries as JSON, one object on each line.
func (t *Adder) WriteEntries(w io.Writer) error {
	buffered := bufio.NewWriter(w)
	encoder := json.NewEncoder(buffered)
	for e := range t.Entries() {
		if err := encoder.Encode(e); err != nil {
			return fmt.Errorf("lut: write entries: %w", err)
		}
	}
	if err := buffered.Flush(); err != nil {
		return fmt.Errorf("lut: write entries: %w", err)
	}
	return nil
}

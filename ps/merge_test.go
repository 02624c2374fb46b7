// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"strings"
	"testing"
)

// Stores that share the rows of a training are together equal to one store.
func TestMerge(t *testing.T) {
	for _, method := range []Method{SGD, Adagrad} {
		cfg := Config{Dim: 2, Exp: DefaultExp, Optimizer: Optimizer{Method: method}, Init: Init{Seed: 4}}
		stores := make([]*Store, 4) // the last one has all
		for i := range stores {
			var err error
			if stores[i], err = New(cfg); err != nil {
				t.Fatal(err)
			}
		}
		step := func(of func(key uint64) *Store) {
			for key := range uint64(50) {
				if err := of(key).Push([]uint64{key}, []float32{float32(key), -1}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for range 3 {
			step(func(key uint64) *Store { return stores[key%3] })
			step(func(uint64) *Store { return stores[3] })
			for _, s := range stores {
				s.Commit()
			}
		}
		all, err := Merge(stores[:3]...)
		if err != nil {
			t.Fatal(err)
		}
		// It also continues like one.
		step(func(uint64) *Store { return all })
		step(func(uint64) *Store { return stores[3] })
		all.Commit()
		stores[3].Commit()
		if all.Len() != 50 || all.Hash() != stores[3].Hash() {
			t.Errorf("%v: %d rows with other weights", method, all.Len())
		}
		if _, err := Merge(stores[0], stores[3]); !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "key 0 is at server 1 and at one before it") {
			t.Errorf("a row in two stores: %v", err)
		}
		cfg.Init.Seed++
		other, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Merge(stores[0], other); !errors.Is(err, ErrMismatch) || !strings.Contains(err.Error(), "server 1: ") {
			t.Errorf("stores of two jobs: %v", err)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package ps

import "fmt"

// Merge returns a store with the rows of all the stores of one job's servers, which share no key.
// It has the configuration and the harvests of the first; open steps are left out. The error names
// the field in which another store's configuration differs, or a key that occurs twice; it wraps
// [ErrMismatch].
func Merge(stores ...*Store) (*Store, error) {
	cfg := stores[0].cfg
	total := 0
	for _, s := range stores {
		total += s.kept()
	}
	cfg.Capacity, cfg.MaxRows = 0, max(cfg.MaxRows, total)
	all, err := New(cfg)
	if err != nil {
		return nil, err
	}
	all.noteHarvest(stores[0].committed)
	all.committed = stores[0].committed
	for i, s := range stores {
		head := checkpointHead{dim: s.cfg.Dim, exp: s.cfg.Exp, method: s.cfg.Optimizer.Method, init: s.cfg.Init}
		if err := head.compareConfig(cfg); err != nil {
			return nil, fmt.Errorf("server %d: %w", i, err)
		}
		for r := range s.kept() {
			key, _, weights, squares := s.rows.rowArrays(r)
			at, inserted := all.index.placeKey(key, all.rows.n)
			if !inserted {
				return nil, fmt.Errorf("%w: key %d is at server %d and at one before it", ErrMismatch, key, i)
			}
			all.insertRow(key)
			_, _, w, q := all.rows.rowArrays(at)
			copy(w, weights)
			copy(q, squares)
		}
	}
	return all, nil
}

// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"
	"sync"

	rt "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/lut"
)

// lutTables are the program's tables for each table of package lut, and the action of their
// entries: a frame can use a table once in a pass, and an addition needs two logarithms
// (program/v1model/lut.p4).
var lutTables = map[string][]lutTable{
	"epo":     {{"of_larger.epo", "of_larger.take_epo"}, {"of_smaller.epo", "of_smaller.take_epo"}},
	"logM":    {{"of_larger.log_m", "of_larger.take_log_m"}, {"of_smaller.log_m", "of_smaller.take_log_m"}},
	"logMln2": {{"of_larger.log_mln2", "of_larger.take_log_mln2"}, {"of_smaller.log_mln2", "of_smaller.take_log_mln2"}},
	"logDelta": {{"of_larger.log_delta", "of_larger.take_log_delta"},
		{"of_smaller.log_delta", "of_smaller.take_log_delta"}},
	"exp":   {{"of_larger.exp", "of_larger.take_exp"}, {"of_smaller.exp", "of_smaller.take_exp"}},
	"mi":    {{"mi", "take_step"}},
	"sub":   {{"sub", "take_step"}},
	"final": {{"final", "take_final"}},
	"norm":  {{"norm", "take_norm"}},
}

type lutTable struct{ table, action string }

// lutParam is the only parameter of such an action.
const lutParam = "entry"

// lutBatch is the number of entries in one message to the switch.
const lutBatch = 4096

// lutLoader fills the program's tables of [aggregator.LUT] for the first job that needs them. That
// takes a switch some seconds, during which the plane serves other calls.
type lutLoader struct {
	progress func(done, total int) // may be nil

	mu   sync.Mutex
	done int // entries that the switch has; a retry sends only the others
}

// lutEntries returns the entries of all tables, always in the same order.
func (n *names) lutEntries() ([]entry, error) {
	adder, err := lut.New(lut.Config{})
	if err != nil {
		return nil, err
	}
	var all []entry
	for e := range adder.Entries() {
		prefix := int32(e.Prefix)
		if prefix > 0 { // of a key that is wider in the program
			prefix += n.tables[lutTables[e.Table][0].table].keys[0].bits - lut.NormBits
		}
		keys, params := []number{uintNumber(uint64(e.Key))}, map[string]number{lutParam: uintNumber(uint64(e.Value))}
		for _, t := range lutTables[e.Table] {
			all = append(all, entry{table: t.table, keys: keys, prefix: prefix, action: t.action, params: params})
		}
	}
	return all, nil
}

// loadLUT prepares the switch for jobs of [aggregator.LUT].
func (p *Plane) loadLUT() error {
	l := &p.lut
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == p.names.lutSize() {
		return nil
	}
	all, err := p.names.lutEntries()
	if err != nil {
		return err
	}
	if len(all) != p.names.lutSize() {
		return fmt.Errorf("p4: %w: the program's tables for lut arithmetic have room for %d entries, and package lut has %d",
			aggregator.ErrUnsupported, p.names.lutSize(), len(all))
	}
	for l.done < len(all) {
		batch := all[l.done:min(l.done+lutBatch, len(all))]
		updates := make([]*rt.Update, len(batch))
		for i, e := range batch {
			m, err := p.names.tableEntry(e)
			if err != nil {
				return err
			}
			updates[i] = update(rt.Update_INSERT, m)
		}
		if err := p.client.insertAll("tables of lut arithmetic", updates); err != nil {
			return fmt.Errorf("%w (%d of %d entries are loaded)", err, l.done, len(all))
		}
		l.done += len(batch)
		if l.progress != nil {
			l.progress(l.done, len(all))
		}
	}
	return nil
}

// lutSize returns the number of entries of the program's tables of lut arithmetic.
func (n *names) lutSize() (size int) {
	for _, tables := range lutTables {
		for _, t := range tables {
			size += int(n.tables[t.table].size)
		}
	}
	return size
}

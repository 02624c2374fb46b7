// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"errors"
	"fmt"
	"math/big"
	"strconv"
)

// pipeline is a graph of tables and conditions.
type pipeline struct {
	start string
	nodes map[string]node
}

// node performs an operation and returns the next node; "" ends the pipeline.
type node func(f *frame) string

// Errors of the management of tables.
var (
	// errExists means that a table has an entry with the same key.
	errExists = errors.New("the entry exists")
	// errNoEntry means that a table has no entry with the key.
	errNoEntry = errors.New("no such entry")
	// errTableFull means that a table has no room.
	errTableFull = errors.New("the table is full")
)

// matchKey is one part of a key: exact if Mask is nil.
type matchKey struct{ Value, Mask *big.Int }

// tableEntry is a table entry.
type tableEntry struct {
	Keys     []matchKey
	Priority int // of ternary keys: the highest wins
	Action   string
	Data     []*big.Int
}

// switchTable is a table with its entries.
type switchTable struct {
	keys     []expression
	exact    bool
	actions  map[string]*switchAction
	entries  map[string]*tableEntry // by identity
	fallback *tableEntry            // nil for none
	next     func(hit bool, action string) string
}

func (p *simpleSwitch) loadPipelines(c *configuration) error {
	for _, pl := range c.Pipelines {
		compiled := &pipeline{nodes: make(map[string]node)}
		if pl.Init != nil {
			compiled.start = *pl.Init
		}
		for _, n := range pl.Conditionals {
			e, err := p.expression(&n.Expression)
			if err != nil {
				return fmt.Errorf("condition %s: %w", n.Name, err)
			}
			yes, no := deref(n.True), deref(n.False)
			compiled.nodes[n.Name] = func(f *frame) string {
				if e(f).Sign() != 0 {
					return yes
				}
				return no
			}
		}
		for _, j := range pl.Tables {
			t := &switchTable{exact: true, actions: make(map[string]*switchAction), entries: make(map[string]*tableEntry)}
			for _, k := range j.Key {
				at, _, err := p.field(k.Target)
				if err != nil {
					return fmt.Errorf("table %s: %w", j.Name, err)
				}
				t.keys = append(t.keys, func(f *frame) *big.Int { return f.get(at) })
				t.exact = t.exact && k.Match == "exact"
			}
			for i, name := range j.Actions {
				t.actions[name] = p.actions[j.IDs[i]]
			}
			next, base := j.Next, deref(j.Base)
			t.next = func(hit bool, action string) string {
				key := "__MISS__"
				if hit {
					key = "__HIT__"
				}
				if to, ok := next[key]; ok {
					return deref(to)
				}
				if to, ok := next[action]; ok {
					return deref(to)
				}
				return base
			}
			if d := j.Default; d != nil {
				e, err := p.entry(d.ID, d.Data)
				if err != nil {
					return fmt.Errorf("table %s: %w", j.Name, err)
				}
				t.fallback = e
			}
			for i, row := range j.Entries {
				e, err := p.entry(row.Action.ID, row.Action.Data)
				if err != nil {
					return fmt.Errorf("table %s: %w", j.Name, err)
				}
				e.Priority = len(j.Entries) - i
				for _, k := range row.Key {
					text, _ := k.Key.(string)
					v, err := parseHex(text)
					if err != nil {
						return fmt.Errorf("table %s: %w", j.Name, err)
					}
					key := matchKey{Value: v}
					if k.Match == "lpm" { // of 64 bits: the only one with entries in the program
						key.Mask = prefixMask(k.Prefix, 64)
					}
					e.Keys = append(e.Keys, key)
				}
				t.entries[e.identity()] = e
			}
			p.tables[j.Name] = t
			compiled.nodes[j.Name] = t.apply
		}
		p.pipelines[pl.Name] = compiled
	}
	return nil
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// entry returns an entry of the configuration without keys.
func (p *simpleSwitch) entry(id int, data []string) (*tableEntry, error) {
	a, ok := p.actions[id]
	if !ok {
		return nil, fmt.Errorf("no action %d", id)
	}
	e := &tableEntry{Action: a.name}
	for _, d := range data {
		n, err := parseHex(d)
		if err != nil {
			return nil, err
		}
		e.Data = append(e.Data, n)
	}
	return e, nil
}

// prefixMask is the mask of a prefix of a key.
func prefixMask(prefix, bits int) *big.Int {
	return new(big.Int).Lsh(mask(prefix), uint(bits-prefix))
}

// identity is equal for two entries with the same key. For exact keys it is the text of the key.
func (e *tableEntry) identity() string {
	var s []byte
	for _, k := range e.Keys {
		s = append(k.Value.Append(s, 36), ' ')
		if k.Mask != nil {
			s = append(k.Mask.Append(append(s, '&'), 36), ' ')
		}
	}
	if e.Priority != 0 {
		s = strconv.AppendInt(append(s, '@'), int64(e.Priority), 10)
	}
	return string(s)
}

// apply looks up a frame and runs the entry's action.
func (t *switchTable) apply(f *frame) string {
	values := make([]matchKey, len(t.keys))
	for i, k := range t.keys {
		values[i].Value = k(f)
	}
	e := t.match(values)
	hit := e != nil
	if !hit {
		e = t.fallback
	}
	if e == nil {
		return t.next(false, "")
	}
	f.data = e.Data
	for _, do := range t.actions[e.Action].do {
		do(f)
	}
	return t.next(hit, e.Action)
}

func (t *switchTable) match(values []matchKey) (best *tableEntry) {
	if t.exact && len(t.keys) > 0 {
		return t.entries[(&tableEntry{Keys: values}).identity()]
	}
	for _, e := range t.entries {
		fits := true
		for i, k := range e.Keys {
			v := values[i].Value
			if k.Mask != nil {
				v = new(big.Int).And(v, k.Mask)
			}
			fits = fits && v.Cmp(k.Value) == 0
		}
		if fits && (best == nil || e.Priority > best.Priority) {
			best = e
		}
	}
	return best
}

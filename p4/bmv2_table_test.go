// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"errors"
	"fmt"
	"slices"
)

// Errors of the management of tables.
var (
	// errExists means that a table has an entry with the same key.
	errExists = errors.New("the entry exists")
	// errNoEntry means that a table has no entry with the key.
	errNoEntry = errors.New("no such entry")
	// errTableFull means that a table has no room.
	errTableFull = errors.New("the table is full")
)

// matchKey is one part of a key: exact unless it is masked.
type matchKey struct {
	Value, Mask num
	Masked      bool
}

func (k *matchKey) fits(v num) bool {
	if k.Masked {
		v = v.and(k.Mask)
	}
	return v == k.Value
}

// tableEntry is a table entry.
type tableEntry struct {
	Keys     []matchKey
	Priority int // of ternary keys: the highest wins
	Action   string
	Data     []num
}

// tableType is a table of a program.
type tableType struct {
	name     string
	keys     []place
	wide     []bool // keys of more than 64 bits
	exact    bool
	actions  []tableAction
	index    map[string]int // of actions, by name
	fallback *boundAction   // nil for none
	none     *node          // the next one if there is none
	constant []*tableEntry
}

// tableAction is an action of a table, with what comes after it.
type tableAction struct {
	*switchAction
	hit, miss *node
}

// boundAction is an action with its parameters.
type boundAction struct {
	action int
	data   []num
}

// exactKey is the key of an entry of an exact table, in words.
type exactKey [6]uint64

// parameters is the action of an entry of an exact table, with its parameters: a part of the
// table's data. A map of them has no pointers, so that the garbage collector leaves out the
// hundreds of thousands of entries of lut arithmetic.
type parameters struct{ action, first, end uint32 }

// switchTable is a table of a switch with its entries.
type switchTable struct {
	*tableType
	entries map[exactKey]parameters
	data    []num
	ranked  []rankedEntry // of other tables: the highest priority first
}

type rankedEntry struct {
	keys     []matchKey
	priority int
	boundAction
}

func newTable(t *tableType) (*switchTable, error) {
	s := &switchTable{tableType: t, entries: make(map[exactKey]parameters)}
	for _, e := range t.constant {
		if err := s.insert(e, len(t.constant)); err != nil {
			return nil, fmt.Errorf("table %s: %w", t.name, err)
		}
	}
	return s, nil
}

func (t *switchTable) len() int { return len(t.entries) + len(t.ranked) }

// word adds a part to a key, of one word or two.
func (k *exactKey) word(at int, v num, wide bool) int {
	k[at] = v.lo
	if !wide {
		return at + 1
	}
	k[at+1] = uint64(v.hi)
	return at + 2
}

func (t *tableType) exactKey(e *tableEntry) (key exactKey) {
	at := 0
	for i := range e.Keys {
		at = key.word(at, e.Keys[i].Value, t.wide[i])
	}
	return key
}

// find returns the index of an entry of a table that is not exact, where it is or would be.
func (t *switchTable) find(e *tableEntry) (at int, found bool) {
	for at = 0; at < len(t.ranked) && t.ranked[at].priority >= e.Priority; at++ {
		if t.ranked[at].priority == e.Priority && slices.Equal(t.ranked[at].keys, e.Keys) {
			return at, true
		}
	}
	return at, false
}

// insert adds an entry. size is the largest number of entries.
func (t *switchTable) insert(e *tableEntry, size int) error {
	action, ok := t.index[e.Action]
	if !ok {
		return fmt.Errorf("table %s has no action %q", t.name, e.Action)
	}
	at, found := 0, false
	if t.exact {
		_, found = t.entries[t.exactKey(e)]
	} else {
		at, found = t.find(e)
	}
	switch {
	case found:
		return errExists
	case t.len() >= size:
		return errTableFull
	case t.exact:
		t.set(e, action)
	default:
		t.ranked = slices.Insert(t.ranked, at, rankedEntry{e.Keys, e.Priority, boundAction{action, e.Data}})
	}
	return nil
}

// set writes an entry of an exact table.
func (t *switchTable) set(e *tableEntry, action int) {
	first := len(t.data)
	t.data = append(t.data, e.Data...)
	t.entries[t.exactKey(e)] = parameters{uint32(action), uint32(first), uint32(len(t.data))}
}

// modify replaces the action of an entry.
func (t *switchTable) modify(e *tableEntry) error {
	action, ok := t.index[e.Action]
	if !ok {
		return fmt.Errorf("table %s has no action %q", t.name, e.Action)
	}
	if t.exact {
		if _, found := t.entries[t.exactKey(e)]; !found {
			return errNoEntry
		}
		t.set(e, action)
		return nil
	}
	at, found := t.find(e)
	if !found {
		return errNoEntry
	}
	t.ranked[at].boundAction = boundAction{action, e.Data}
	return nil
}

// delete removes the entry with the key of e.
func (t *switchTable) delete(e *tableEntry) error {
	if t.exact {
		key := t.exactKey(e)
		if _, found := t.entries[key]; !found {
			return errNoEntry
		}
		delete(t.entries, key)
		return nil
	}
	at, found := t.find(e)
	if !found {
		return errNoEntry
	}
	t.ranked = slices.Delete(t.ranked, at, at+1)
	return nil
}

// apply looks up a frame and runs the entry's action.
func (t *switchTable) apply(f *frame) *node {
	if t.exact {
		var key exactKey
		at := 0
		for i, k := range t.keys {
			at = key.word(at, f.get(k), t.wide[i])
		}
		if p, ok := t.entries[key]; ok {
			return t.act(f, int(p.action), t.data[p.first:p.end], true)
		}
	}
	for i := range t.ranked {
		if e := &t.ranked[i]; t.matches(f, e.keys) {
			return t.act(f, e.action, e.data, true)
		}
	}
	if t.fallback == nil {
		return t.none
	}
	return t.act(f, t.fallback.action, t.fallback.data, false)
}

func (t *tableType) matches(f *frame, keys []matchKey) bool {
	for i := range keys {
		if !keys[i].fits(f.get(t.keys[i])) {
			return false
		}
	}
	return true
}

// act runs an action and returns the next node.
func (t *tableType) act(f *frame, action int, data []num, hit bool) *node {
	a := &t.actions[action]
	f.data = data
	for _, do := range a.do {
		do(f)
	}
	if hit {
		return a.hit
	}
	return a.miss
}

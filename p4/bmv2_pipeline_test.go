// SPDX-License-Identifier: Apache-2.0

package p4

import "fmt"

// node is a table or a condition of a pipeline, which is a graph. It performs an operation and
// returns the next node; nil ends the pipeline.
type node struct{ run func(f *frame) *node }

// nodes are those of a pipeline, by name.
type nodes map[string]*node

// next returns the node that is named, if one is.
func (n nodes) next(name *string) (*node, error) {
	if name == nil {
		return nil, nil
	}
	to, ok := n[*name]
	if !ok {
		return nil, fmt.Errorf("no table or condition %q", *name)
	}
	return to, nil
}

func (p *switchProgram) loadPipelines(c *configuration) error {
	for _, pl := range c.Pipelines {
		all := make(nodes)
		for _, n := range pl.Conditionals {
			all[n.Name] = new(node)
		}
		for _, t := range pl.Tables {
			all[t.Name] = new(node)
		}
		for _, n := range pl.Conditionals {
			e, err := p.expression(&n.Expression)
			if err != nil {
				return fmt.Errorf("condition %s: %w", n.Name, err)
			}
			yes, err := all.next(n.True)
			if err != nil {
				return err
			}
			no, err := all.next(n.False)
			if err != nil {
				return err
			}
			all[n.Name].run = func(f *frame) *node {
				if e(f) != zero {
					return yes
				}
				return no
			}
		}
		for i := range pl.Tables {
			t, err := p.loadTable(&pl.Tables[i], all)
			if err != nil {
				return fmt.Errorf("table %s: %w", pl.Tables[i].Name, err)
			}
			i := len(p.tables)
			p.tables = append(p.tables, t)
			if len(t.keys) == 0 && t.fallback != nil { // a call of an action, of which there are many
				e := t.fallback
				all[t.name].run = func(f *frame) *node { return t.act(f, e.action, e.data, false) }
				continue
			}
			all[t.name].run = func(f *frame) *node { return f.in.byIndex[i].apply(f) }
		}
		var err error
		if p.pipelines[pl.Name], err = all.next(pl.Init); err != nil {
			return err
		}
	}
	return nil
}

// loadTable compiles a table, and its constant entries.
func (p *switchProgram) loadTable(j *configuredTable, all nodes) (*tableType, error) {
	t := &tableType{name: j.Name, exact: true, index: make(map[string]int)}
	parts := 0
	for _, k := range j.Key {
		at, ft, err := p.field(k.Target)
		switch {
		case err != nil:
			return nil, err
		case ft.bits < 0:
			return nil, fmt.Errorf("a key of any length")
		}
		t.keys, t.wide = append(t.keys, at), append(t.wide, ft.bits > 64)
		t.exact = t.exact && k.Match == "exact"
		parts += (ft.bits + 63) / 64
	}
	t.exact = t.exact && len(t.keys) > 0
	if t.exact && parts > len(exactKey{}) {
		return nil, fmt.Errorf("a key of %d words", parts)
	}
	named := func(outcome, action string) (*node, error) {
		if to, ok := j.Next[outcome]; ok {
			return all.next(to)
		}
		if to, ok := j.Next[action]; ok {
			return all.next(to)
		}
		return all.next(j.Base)
	}
	for i, name := range j.Actions {
		a := tableAction{switchAction: p.actions[j.IDs[i]]}
		var err error
		if a.hit, err = named("__HIT__", name); err != nil {
			return nil, err
		}
		if a.miss, err = named("__MISS__", name); err != nil {
			return nil, err
		}
		t.index[name] = len(t.actions)
		t.actions = append(t.actions, a)
	}
	var err error
	if t.none, err = named("__MISS__", ""); err != nil {
		return nil, err
	}
	if d := j.Default; d != nil {
		e, err := p.entry(d.ID, d.Data)
		if err != nil {
			return nil, err
		}
		t.fallback = &boundAction{action: t.index[e.Action], data: e.Data}
		if _, ok := t.index[e.Action]; !ok {
			return nil, fmt.Errorf("no action %q", e.Action)
		}
	}
	for i, row := range j.Entries {
		e, err := p.entry(row.Action.ID, row.Action.Data)
		if err != nil {
			return nil, err
		}
		e.Priority = len(j.Entries) - i
		for _, k := range row.Key {
			v, err := hexNumber(k.Key)
			if err != nil {
				return nil, err
			}
			key := matchKey{Value: v}
			if k.Match == "lpm" { // of 64 bits: the only one with entries in the program
				key.Mask, key.Masked = prefixMask(k.Prefix, 64), true
			}
			e.Keys = append(e.Keys, key)
		}
		t.constant = append(t.constant, e)
	}
	return t, nil
}

// entry returns an entry of the configuration without keys.
func (p *switchProgram) entry(id int, data []string) (*tableEntry, error) {
	a, ok := p.actions[id]
	if !ok {
		return nil, fmt.Errorf("no action %d", id)
	}
	e := &tableEntry{Action: a.name}
	for _, d := range data {
		n, err := hexNumber(d)
		if err != nil {
			return nil, err
		}
		e.Data = append(e.Data, n)
	}
	return e, nil
}

// prefixMask is the mask of a prefix of a key.
func prefixMask(prefix, bits int) num { return mask(bits).xor(mask(bits - prefix)) }

// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"fmt"
	"math/big"
)

// expression computes a number or a condition, which is 0 or 1.
type expression func(f *frame) num

// expression compiles a value.
func (p *switchProgram) expression(v *value) (expression, error) {
	switch v.Type {
	case "expression":
		inner, ok := v.Value.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("expression %v", v.Value)
		}
		if nested := valueOf(inner); nested.Type != "" {
			return p.expression(nested)
		}
		return p.operation(inner)
	case "field":
		at, t, err := p.field(v.Value)
		if err != nil {
			return nil, err
		}
		if t.bits < 0 || t.bits > 127 {
			return nil, fmt.Errorf("field %v is too wide to be computed with", v.Value)
		}
		if at < 0 {
			return func(f *frame) num { return f.get(at) }, nil
		}
		return func(f *frame) num { return f.fields[at] }, nil
	case "hexstr", "bool":
		n, err := constant(v)
		return func(*frame) num { return n }, err
	case "local", "runtime_data":
		n, ok := v.Value.(float64)
		if !ok {
			return nil, fmt.Errorf("parameter %v", v.Value)
		}
		i := int(n)
		return func(f *frame) num { return f.data[i] }, nil
	case "header": // of operation valid
		h, err := p.headerOf(v.Value)
		return func(f *frame) num { return truth(f.valid[h]) }, err
	}
	return nil, fmt.Errorf("no values of type %q (%v)", v.Type, v.Value)
}

// constant returns the number of a constant.
func constant(v *value) (num, error) {
	if b, ok := v.Value.(bool); ok {
		return truth(b), nil
	}
	return hexNumber(v.Value)
}

func hexNumber(v any) (num, error) {
	text, ok := v.(string)
	if !ok {
		return zero, fmt.Errorf("%v is no number", v)
	}
	n, ok := new(big.Int).SetString(text, 0)
	if !ok {
		return zero, fmt.Errorf("%q is no number", text)
	}
	return narrowed(n)
}

// constantOf returns the number that a part of an operation is, if it is one in any frame.
func constantOf(v *value) (n num, ok bool) {
	for v.Type == "expression" {
		inner, ok := v.Value.(map[string]any)
		if !ok {
			return zero, false
		}
		v = valueOf(inner)
	}
	if v.Type != "hexstr" && v.Type != "bool" {
		return zero, false
	}
	n, err := constant(v)
	return n, err == nil
}

// operation compiles an operation. Numbers have as many bits as they need: the compiler has marked
// where they are truncated.
func (p *switchProgram) operation(o map[string]any) (expression, error) {
	op, _ := o["op"].(string)
	var parts [3]expression
	for i, name := range []string{"left", "right", "cond"} {
		m, ok := o[name].(map[string]any)
		if !ok {
			continue
		}
		var err error
		if parts[i], err = p.expression(valueOf(m)); err != nil {
			return nil, err
		}
	}
	left, right, cond := parts[0], parts[1], parts[2]
	if m, ok := o["right"].(map[string]any); ok {
		if n, ok := constantOf(valueOf(m)); ok {
			if e := withConstant(op, left, n); e != nil {
				return e, nil
			}
		}
	}
	switch op {
	case "+":
		return func(f *frame) num { return left(f).add(right(f)) }, nil
	case "-":
		return func(f *frame) num { return left(f).sub(right(f)) }, nil
	case "*":
		return func(f *frame) num { return left(f).mul(right(f)) }, nil
	case "<<":
		return func(f *frame) num { return left(f).shl(right(f).lo) }, nil
	case ">>":
		return func(f *frame) num { return left(f).shr(right(f).lo) }, nil
	case "&":
		return func(f *frame) num { return left(f).and(right(f)) }, nil
	case "|":
		return func(f *frame) num { return left(f).or(right(f)) }, nil
	case "^":
		return func(f *frame) num { return left(f).xor(right(f)) }, nil
	case "==":
		return func(f *frame) num { return truth(left(f) == right(f)) }, nil
	case "!=":
		return func(f *frame) num { return truth(left(f) != right(f)) }, nil
	case "<":
		return func(f *frame) num { return truth(left(f).cmp(right(f)) < 0) }, nil
	case "<=":
		return func(f *frame) num { return truth(left(f).cmp(right(f)) <= 0) }, nil
	case ">":
		return func(f *frame) num { return truth(left(f).cmp(right(f)) > 0) }, nil
	case ">=":
		return func(f *frame) num { return truth(left(f).cmp(right(f)) >= 0) }, nil
	case "two_comp_mod": // the number that the low bits of left are in two's complement
		return func(f *frame) num { return left(f).signed(int(right(f).lo)) }, nil
	case "and":
		return func(f *frame) num { return truth(left(f) != zero && right(f) != zero) }, nil
	case "or":
		return func(f *frame) num { return truth(left(f) != zero || right(f) != zero) }, nil
	case "not":
		return func(f *frame) num { return truth(right(f) == zero) }, nil
	case "~":
		return func(f *frame) num { return right(f).not() }, nil
	case "d2b", "b2d", "valid":
		return right, nil
	case "?":
		return func(f *frame) num {
			if cond(f) != zero {
				return left(f)
			}
			return right(f)
		}, nil
	}
	return nil, fmt.Errorf("no operation %q", op)
}

// withConstant compiles the most frequent operations whose right side is a constant.
func withConstant(op string, left expression, n num) expression {
	switch op {
	case "&":
		return func(f *frame) num { return left(f).and(n) }
	case ">>":
		return func(f *frame) num { return left(f).shr(n.lo) }
	case "==":
		return func(f *frame) num { return truth(left(f) == n) }
	case "two_comp_mod":
		width := int(n.lo)
		return func(f *frame) num { return left(f).signed(width) }
	}
	return nil
}

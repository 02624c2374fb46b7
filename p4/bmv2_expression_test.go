// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"encoding/json"
	"fmt"
	"math/big"
)

// expression computes a number or a condition, which is 0 or 1.
type expression func(f *frame) *big.Int

var one = big.NewInt(1)

func truth(b bool) *big.Int {
	if b {
		return one
	}
	return zero
}

// expression compiles a value.
func (p *simpleSwitch) expression(v *value) (expression, error) {
	switch v.Type {
	case "expression":
		var inner term
		if err := json.Unmarshal(v.Value, &inner); err != nil {
			return nil, fmt.Errorf("expression %s: %w", v.Value, err)
		}
		if inner.Type != "" {
			return p.expression(&inner.value)
		}
		return p.operation(&inner)
	case "field":
		at, _, err := p.field(v.Value)
		if err != nil {
			return nil, err
		}
		return func(f *frame) *big.Int { return f.get(at) }, nil
	case "hexstr":
		n, err := hexNumber(v.Value)
		if err != nil {
			return nil, err
		}
		return func(*frame) *big.Int { return n }, nil
	case "bool":
		var b bool
		if err := json.Unmarshal(v.Value, &b); err != nil {
			return nil, err
		}
		n := truth(b)
		return func(*frame) *big.Int { return n }, nil
	case "local", "runtime_data":
		var i int
		if err := json.Unmarshal(v.Value, &i); err != nil {
			return nil, err
		}
		return func(f *frame) *big.Int { return f.data[i] }, nil
	case "header": // of operation valid
		i, err := p.headerOf(v.Value)
		if err != nil {
			return nil, err
		}
		return func(f *frame) *big.Int { return truth(f.headers[i].valid) }, nil
	}
	return nil, fmt.Errorf("no values of type %q (%s)", v.Type, v.Value)
}

func hexNumber(raw json.RawMessage) (*big.Int, error) {
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, err
	}
	return parseHex(text)
}

func parseHex(text string) (*big.Int, error) {
	n, ok := new(big.Int).SetString(text, 0)
	if !ok {
		return nil, fmt.Errorf("%q is no number", text)
	}
	return n, nil
}

// operation compiles an operation. Numbers have as many bits as they need: the compiler has marked
// where they are truncated.
func (p *simpleSwitch) operation(o *term) (expression, error) {
	var parts [3]expression
	for i, v := range []*value{o.Left, o.Right, o.Cond} {
		if v == nil {
			continue
		}
		var err error
		if parts[i], err = p.expression(v); err != nil {
			return nil, err
		}
	}
	left, right, cond := parts[0], parts[1], parts[2]
	if binary, ok := binaries[o.Op]; ok {
		return func(f *frame) *big.Int { return binary(left(f), right(f)) }, nil
	}
	switch o.Op {
	case "and":
		return func(f *frame) *big.Int { return truth(left(f).Sign() != 0 && right(f).Sign() != 0) }, nil
	case "or":
		return func(f *frame) *big.Int { return truth(left(f).Sign() != 0 || right(f).Sign() != 0) }, nil
	case "not":
		return func(f *frame) *big.Int { return truth(right(f).Sign() == 0) }, nil
	case "~":
		return func(f *frame) *big.Int { return new(big.Int).Not(right(f)) }, nil
	case "d2b", "b2d", "valid":
		return right, nil
	case "?":
		return func(f *frame) *big.Int {
			if cond(f).Sign() != 0 {
				return left(f)
			}
			return right(f)
		}, nil
	}
	return nil, fmt.Errorf("no operation %q", o.Op)
}

var binaries = map[string]func(a, b *big.Int) *big.Int{
	"+":  func(a, b *big.Int) *big.Int { return new(big.Int).Add(a, b) },
	"-":  func(a, b *big.Int) *big.Int { return new(big.Int).Sub(a, b) },
	"*":  func(a, b *big.Int) *big.Int { return new(big.Int).Mul(a, b) },
	"<<": func(a, b *big.Int) *big.Int { return new(big.Int).Lsh(a, uint(b.Uint64())) },
	">>": func(a, b *big.Int) *big.Int { return new(big.Int).Rsh(a, uint(b.Uint64())) },
	"&":  func(a, b *big.Int) *big.Int { return new(big.Int).And(a, b) },
	"|":  func(a, b *big.Int) *big.Int { return new(big.Int).Or(a, b) },
	"^":  func(a, b *big.Int) *big.Int { return new(big.Int).Xor(a, b) },
	"==": func(a, b *big.Int) *big.Int { return truth(a.Cmp(b) == 0) },
	"!=": func(a, b *big.Int) *big.Int { return truth(a.Cmp(b) != 0) },
	"<":  func(a, b *big.Int) *big.Int { return truth(a.Cmp(b) < 0) },
	"<=": func(a, b *big.Int) *big.Int { return truth(a.Cmp(b) <= 0) },
	">":  func(a, b *big.Int) *big.Int { return truth(a.Cmp(b) > 0) },
	">=": func(a, b *big.Int) *big.Int { return truth(a.Cmp(b) >= 0) },
	// The number that the low b bits of a are in two's complement.
	"two_comp_mod": func(a, b *big.Int) *big.Int {
		width := uint(b.Uint64())
		n := new(big.Int).And(a, mask(int(width)))
		if n.Bit(int(width)-1) == 1 {
			n.Sub(n, new(big.Int).Lsh(one, width))
		}
		return n
	},
}

// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"errors"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

// echo is a program that sends a frame back whose second half byte is in a table, with
// the first half byte from a register, which grows by 7.
const echo = `{
 "header_types": [
  {"name": "std", "fields": [["ingress_port", 9, false], ["egress_spec", 9, false], ["egress_port", 9, false],
   ["egress_rid", 16, false], ["mcast_grp", 16, false], ["packet_length", 32, false],
   ["parser_error", 32, false], ["checksum_error", 1, false]]},
  {"name": "h_t", "fields": [["a", 4, false], ["b", 4, false], ["rest", "*"]]}],
 "headers": [{"name": "standard_metadata", "header_type": "std", "metadata": true}, {"name": "h", "header_type": "h_t"}],
 "errors": [["NoError", 0], ["PacketTooShort", 1], ["NoMatch", 2]],
 "parsers": [{"init_state": "start", "parse_states": [{"name": "start",
  "parser_ops": [{"op": "extract_VL", "parameters": [{"type": "regular", "value": "h"}, {"type": "expression", "value": {"type": "hexstr", "value": "0x10"}}]}],
  "transitions": [{"type": "default", "next_state": null}], "transition_key": []}]}],
 "deparsers": [{"order": ["h"]}],
 "register_arrays": [{"name": "r", "size": 2, "bitwidth": 4}],
 "actions": [
  {"name": "bump", "id": 0, "primitives": [
   {"op": "register_read", "parameters": [{"type": "field", "value": ["h", "a"]}, {"type": "register_array", "value": "r"}, {"type": "hexstr", "value": "0x1"}]},
   {"op": "register_write", "parameters": [{"type": "register_array", "value": "r"}, {"type": "hexstr", "value": "0x1"},
    {"type": "expression", "value": {"type": "expression", "value": {"op": "+", "left": {"type": "field", "value": ["h", "a"]}, "right": {"type": "hexstr", "value": "0x7"}}}}]},
   {"op": "assign", "parameters": [{"type": "field", "value": ["standard_metadata", "egress_spec"]}, {"type": "field", "value": ["standard_metadata", "ingress_port"]}]}]},
  {"name": "drop", "id": 1, "primitives": [{"op": "mark_to_drop", "parameters": [{"type": "header", "value": "standard_metadata"}]}]}],
 "pipelines": [
  {"name": "ingress", "init_table": "t", "tables": [{"name": "t", "key": [{"match_type": "exact", "target": ["h", "b"]}],
   "actions": ["bump", "drop"], "action_ids": [0, 1], "base_default_next": null,
   "next_tables": {"bump": null, "drop": null}, "default_entry": {"action_id": 1, "action_data": []}}], "conditionals": []},
  {"name": "egress", "init_table": null, "tables": [], "conditionals": []}]
}`

func TestRunsAProgram(t *testing.T) {
	p, err := loadSwitch([]byte(echo))
	if err != nil {
		t.Fatal(err)
	}
	if out := p.process(3, []byte{0x25, 1, 2, 9}); out != nil {
		t.Errorf("without an entry: %v", out)
	}
	e := &tableEntry{Keys: []matchKey{{Value: num{lo: 5}}}, Action: "bump"}
	if err := p.insert("t", 1, e); err != nil {
		t.Fatal(err)
	}
	for _, want := range []byte{0x05, 0x75, 0xe5, 0x55} { // 4 bits of a register
		out := p.process(3, []byte{0x25, 1, 2, 9})
		if len(out) != 1 || out[0].Port != 3 || string(out[0].Data) != string([]byte{want, 1, 2, 9}) {
			t.Errorf("%v, want %#x 1 2 9 out of port 3", out, want)
		}
	}
	if out := p.process(3, []byte{0x25, 1}); out != nil {
		t.Errorf("a frame that is too short is looked up: %v", out)
	}
	if err := p.insert("t", 2, e); !errors.Is(err, errExists) {
		t.Errorf("the same entry: %v", err)
	}
	other := &tableEntry{Keys: []matchKey{{Value: num{lo: 6}}}, Action: "bump"}
	if err := p.insert("t", 1, other); !errors.Is(err, errTableFull) {
		t.Errorf("one entry too many: %v", err)
	}
	if err := p.delete("t", other); !errors.Is(err, errNoEntry) {
		t.Errorf("an entry that is not there: %v", err)
	}
	if err := p.delete("t", e); err != nil {
		t.Error(err)
	}
	if out := p.process(3, []byte{0x25, 1, 2, 9}); out != nil {
		t.Errorf("behind a deletion: %v", out)
	}
}

func TestSaysWhatItLacks(t *testing.T) {
	for _, what := range []string{"mark_to_drop", "extract_VL", "register_read"} {
		_, err := loadSwitch([]byte(strings.Replace(echo, what, "resubmit_"+what, 1)))
		if err == nil || !strings.Contains(err.Error(), "resubmit_"+what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// Numbers are those of math/big: what has no room panics.
func TestNumbersEqualBig(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 5))
	number := func() *big.Int { // of all lengths, most often with many equal bits
		v := new(big.Int).Lsh(new(big.Int).SetUint64(rng.Uint64()>>rng.IntN(64)), uint(rng.IntN(64)))
		if rng.IntN(2) == 0 {
			v.Neg(v)
		}
		if v.BitLen() <= 126 && rng.IntN(4) == 0 {
			v.Sub(v, big.NewInt(1))
		}
		return v
	}
	of := func(v *big.Int) num {
		n, err := narrowed(v)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	refused := 0
	same := func(op string, a, b *big.Int, compute func() num, want *big.Int) {
		t.Helper()
		defer func() {
			if r := recover(); r != nil {
				refused++
				if want.BitLen() <= 127 && op != "*" {
					t.Fatalf("%v %s %v: %v", a, op, b, r)
				}
			}
		}()
		if got := compute().big(); got.Cmp(want) != 0 {
			t.Fatalf("%v %s %v is %v, want %v", a, op, b, got, want)
		}
	}
	for range 20_000 {
		a, b := number(), number()
		n, width := uint(rng.IntN(160)), 1+rng.IntN(127)
		x, y := of(a), of(b)
		shift := new(big.Int).SetUint64(uint64(n))
		bits := big.NewInt(int64(width))
		low := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(width)), big.NewInt(1))
		cut := new(big.Int).And(a, low)
		signed := new(big.Int).Set(cut)
		if cut.Bit(width-1) == 1 {
			signed.Sub(signed, new(big.Int).Add(low, big.NewInt(1)))
		}
		same("+", a, b, func() num { return x.add(y) }, new(big.Int).Add(a, b))
		same("-", a, b, func() num { return x.sub(y) }, new(big.Int).Sub(a, b))
		same("*", a, b, func() num { return x.mul(y) }, new(big.Int).Mul(a, b))
		same("&", a, b, func() num { return x.and(y) }, new(big.Int).And(a, b))
		same("|", a, b, func() num { return x.or(y) }, new(big.Int).Or(a, b))
		same("^", a, b, func() num { return x.xor(y) }, new(big.Int).Xor(a, b))
		same("~", a, b, x.not, new(big.Int).Not(a))
		same("<<", a, shift, func() num { return x.shl(uint64(n)) }, new(big.Int).Lsh(a, n))
		same(">>", a, shift, func() num { return x.shr(uint64(n)) }, new(big.Int).Rsh(a, n))
		same("in", a, bits, func() num { return x.truncated(width) }, cut)
		same("signed in", a, bits, func() num { return x.signed(width) }, signed)
		if x.cmp(y) != a.Cmp(b) || (x == y) != (a.Cmp(b) == 0) {
			t.Fatalf("%v and %v compare as %d", a, b, x.cmp(y))
		}
	}
	if refused == 0 {
		t.Error("no result was too wide")
	}
	if _, err := narrowed(new(big.Int).Lsh(big.NewInt(1), 127)); err == nil {
		t.Error("a number of 128 bits was accepted")
	}
}

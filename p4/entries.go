// SPDX-License-Identifier: Apache-2.0

package p4

import (
	"bytes"
	"fmt"
	"math/big"
	"net/netip"

	config "github.com/p4lang/p4runtime/go/p4/config/v1"
	rt "github.com/p4lang/p4runtime/go/p4/v1"
)

// number is a value of any width in a table or a packet.
type number []byte

func uintNumber(v uint64) number { return new(big.Int).SetUint64(v).Bytes() }

func macNumber(mac [6]byte) number { return mac[:] }

func addrNumber(a netip.Addr) number { return a.AsSlice() }

// canonicalBytes returns a number in P4Runtime's encoding: as short as possible, but not empty
// (P4Runtime 1.4, §8.4).
func (n number) canonicalBytes() []byte {
	n = bytes.TrimLeft(n, "\x00")
	if len(n) == 0 {
		return []byte{0}
	}
	return n
}

// toUint64 returns a number of at most 64 bits.
func (n number) toUint64() uint64 { return new(big.Int).SetBytes(n).Uint64() }

// entry describes a table entry by the names in the program.
type entry struct {
	table    string
	keys     []number // in the order of the table's keys
	priority int32    // for ternary keys
	prefix   int32    // of a key that is matched by its leading bits
	action   string
	params   map[string]number
}

// tableEntry returns the message for an entry. Without an action it only identifies the entry,
// which is enough to delete it.
func (n *names) tableEntry(e entry) (*rt.TableEntry, error) {
	t := n.tables[e.table]
	m := &rt.TableEntry{TableId: t.id, Priority: e.priority}
	for i, key := range e.keys {
		f := t.keys[i]
		switch f.match {
		case config.MatchField_EXACT:
			m.Match = append(m.Match, &rt.FieldMatch{FieldId: f.id, FieldMatchType: &rt.FieldMatch_Exact_{
				Exact: &rt.FieldMatch_Exact{Value: key.canonicalBytes()},
			}})
		case config.MatchField_LPM:
			m.Match = append(m.Match, &rt.FieldMatch{FieldId: f.id, FieldMatchType: &rt.FieldMatch_Lpm{
				Lpm: &rt.FieldMatch_LPM{Value: key.canonicalBytes(), PrefixLen: e.prefix},
			}})
		case config.MatchField_TERNARY:
			if key == nil {
				continue // an omitted field matches everything
			}
			m.Match = append(m.Match, &rt.FieldMatch{FieldId: f.id, FieldMatchType: &rt.FieldMatch_Ternary_{
				Ternary: &rt.FieldMatch_Ternary{Value: key.canonicalBytes(), Mask: ones(f.bits)},
			}})
		default:
			return nil, fmt.Errorf("p4: table %s: key %s is matched by %v", e.table, f.name, f.match)
		}
	}
	if e.action == "" {
		return m, nil
	}
	a := n.actions[e.action]
	call := &rt.Action{ActionId: a.id}
	for _, p := range a.params {
		v, ok := e.params[p.name]
		if !ok {
			return nil, fmt.Errorf("p4: action %s: the program wants a parameter %s", e.action, p.name)
		}
		call.Params = append(call.Params, &rt.Action_Param{ParamId: p.id, Value: v.canonicalBytes()})
	}
	m.Action = &rt.TableAction{Type: &rt.TableAction_Action{Action: call}}
	return m, nil
}

// ones returns a mask of the given number of bits.
func ones(bits int32) []byte {
	one := big.NewInt(1)
	return one.Sub(one.Lsh(one, uint(bits)), big.NewInt(1)).Bytes()
}

// metadataList returns the metadata of a packet, in the order of its fields.
func (p packet) metadataList(values ...number) []*rt.PacketMetadata {
	var all []*rt.PacketMetadata
	for i, f := range p.fields {
		all = append(all, &rt.PacketMetadata{MetadataId: f.id, Value: values[i].canonicalBytes()})
	}
	return all
}

// metadataValues returns the values of a packet's metadata, in the order of its fields.
func (p packet) metadataValues(all []*rt.PacketMetadata) []number {
	values := make([]number, len(p.fields))
	for i, f := range p.fields {
		for _, m := range all {
			if m.MetadataId == f.id {
				values[i] = m.Value
			}
		}
	}
	return values
}

// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/libra-ina/libra/wire"
)

// TestRowNumbers packs prepared batches, alone and together, in which all, some or no cold rows
// have numbers, and of several numberings.
func TestRowNumbers(t *testing.T) {
	hot, err := NewHotSet(2, []uint64{1000, 1001}, nil, Meta{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{HotSet: hot, Layout: Dense})
	if err != nil {
		t.Fatal(err)
	}
	prepare := func(keys ...uint64) *Prepared {
		b, err := p.Prepare(keys)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a, b, onlyHot := prepare(7, 1000, 8, 9), prepare(1001, 9), prepare(1000)
	// frames returns the rows of a push's cold frames: numbers or keys.
	payload := make([]byte, wire.ColdLen(3, 2)) // three rows by key, or by number
	frames := func(batches ...*Prepared) (kind wire.Type, names []uint64) {
		rows := 0
		for _, b := range batches {
			rows += len(b.keys)
		}
		grads := make([]float32, 2*rows)
		for i := range grads {
			grads[i] = float32(i)
		}
		if err := p.BeginPrepared(grads, batches...); err != nil {
			t.Fatal(err)
		}
		for p.Next() != 0 {
			kind = p.Next()
			buf := make([]byte, wire.HotLen(1))
			if kind != wire.TypeHot {
				buf = payload
			}
			f, err := p.Fill(buf)
			if err != nil {
				t.Fatal(err)
			}
			if kind == wire.TypeHot {
				continue
			}
			body, err := wire.ParseRows(f, kind)
			if err != nil {
				t.Fatal(err)
			}
			row := make([]float32, 2)
			for i := range body.Count {
				if kind == wire.TypeColdAt {
					names = append(names, uint64(body.Numbering)<<32|uint64(body.Number(i)))
				} else {
					names = append(names, body.Key(i))
				}
				if body.Row(i, row); row[1] != row[0]+1 {
					t.Errorf("row %v", row)
				}
			}
		}
		return kind, names
	}
	check := func(what string, want wire.Type, names []uint64, batches ...*Prepared) {
		t.Helper()
		if kind, got := frames(batches...); kind != want || !slices.Equal(got, names) {
			t.Errorf("%s: %v of %x, want %v of %x", what, kind, got, want, names)
		}
	}
	if got := a.ColdRows().Keys; !slices.Equal(got, []uint64{7, 8, 9}) || len(onlyHot.ColdRows().Keys) != 0 {
		t.Errorf("cold keys %v", got)
	}
	const first, second = 5 << 32, 6 << 32
	ofA, ofB := &RowNumbers{[]uint32{5}, []uint32{70, 80, 90}}, &RowNumbers{[]uint32{5}, []uint32{90}}
	check("without numbers", wire.TypeCold, []uint64{7, 8, 9, 9}, a, b)
	a.ColdRows().SetNumbers(ofA)
	check("with numbers", wire.TypeColdAt, []uint64{first | 70, first | 80, first | 90}, a)
	check("one of two", wire.TypeCold, []uint64{7, 8, 9, 9}, a, b)
	check("beside one that needs none", wire.TypeColdAt, []uint64{first | 70, first | 80, first | 90}, onlyHot, a)
	b.ColdRows().SetNumbers(ofB)
	check("both", wire.TypeColdAt, []uint64{first | 70, first | 80, first | 90, first | 90}, a, b)
	check("the other way", wire.TypeColdAt, []uint64{first | 90, first | 70, first | 80, first | 90}, b, a)
	b.ColdRows().SetNumbers(&RowNumbers{[]uint32{6}, []uint32{91}})
	check("of two numberings", wire.TypeCold, []uint64{7, 8, 9, 9}, a, b)
	b.ColdRows().ForgetNumbers(ofB) // which it no longer has
	check("another numbering", wire.TypeColdAt, []uint64{second | 91}, b)
	a.ColdRows().ForgetNumbers(ofA)
	check("forgotten", wire.TypeCold, []uint64{7, 8, 9}, a)
	check("hot ones only", wire.TypeHot, nil, onlyHot)
}

// TestRowNumbersOfSeveralServers packs batches together whose rows are at several servers, each
// with its own numbering, which may have changed between two batches: rows go by number exactly if
// no server has rows of two numberings, with the numbering of their server.
func TestRowNumbersOfSeveralServers(t *testing.T) {
	const servers, numbered = Split(3), 1000 // more than a key
	rng := rand.New(rand.NewPCG(1, 2))
	p, err := New(Config{Dim: 1, Split: servers})
	if err != nil {
		t.Fatal(err)
	}
	byNumber, byKey := 0, 0
	for range 500 {
		var batches []*Prepared
		var grads []float32
		want := map[uint64]int{}
		var numberings [servers][]uint32 // of the batches with rows there
		for range 1 + rng.IntN(3) {
			var keys []uint64
			for range 1 + rng.IntN(5) {
				keys = append(keys, rng.Uint64N(numbered))
				want[keys[len(keys)-1]]++
				grads = append(grads, 1)
			}
			b, err := p.Prepare(keys)
			if err != nil {
				t.Fatal(err)
			}
			rows := &RowNumbers{}
			for server := range servers {
				n := uint32(5 + server)
				switch {
				case len(b.placed.Load().positionsOf(int(server))) == 0:
					n = rng.Uint32() // it means nothing
				case rng.IntN(6) == 0:
					n = 0
					fallthrough
				default:
					numberings[server] = append(numberings[server], n)
				}
				rows.Numberings = append(rows.Numberings, n)
			}
			for _, key := range b.ColdRows().Keys {
				rows.Numbers = append(rows.Numbers, numbered+uint32(key))
			}
			b.ColdRows().SetNumbers(rows)
			batches = append(batches, b)
		}
		kind := wire.TypeColdAt
		for _, of := range numberings {
			if len(slices.Compact(slices.Clone(of))) > 1 {
				kind = wire.TypeCold
			}
		}
		if err := p.BeginPrepared(grads, batches...); err != nil {
			t.Fatal(err)
		}
		got := map[uint64]int{}
		for p.Next() != 0 {
			server := p.To()
			f, err := p.Fill(make([]byte, wire.ColdLen(3, 1)))
			if err != nil {
				t.Fatal(err)
			}
			body, err := wire.ParseRows(f, kind)
			if err != nil {
				t.Fatal(err)
			}
			for i := range body.Count {
				key := uint64(0)
				if kind == wire.TypeCold {
					key = body.Key(i)
					byKey++
				} else {
					key = uint64(body.Number(i) - numbered)
					byNumber++
					if body.Numbering != numberings[server][0] {
						t.Errorf("server %d gets numbering %d, has %d", server, body.Numbering, numberings[server][0])
					}
				}
				if servers.Of(key) != server {
					t.Errorf("server %d gets key %d of server %d", server, key, servers.Of(key))
				}
				got[key]++
			}
			if p.Next() != 0 && p.Next() != kind {
				t.Fatalf("a frame of type %v, want %v for all", p.Next(), kind)
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("rows %v, want %v", got, want)
		}
	}
	if byNumber < 500 || byKey < 500 {
		t.Errorf("%d rows by number and %d by key: this test sees little", byNumber, byKey)
	}
}

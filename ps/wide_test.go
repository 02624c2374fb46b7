// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/libra-ina/libra/wire"
)

// exactSums are the sums of a step in exact arithmetic.
type exactSums map[uint64][]*big.Float

func (e exactSums) add(key uint64, col, dim int, x *big.Float) {
	if e[key] == nil {
		e[key] = make([]*big.Float, dim)
		for i := range e[key] {
			e[key][i] = new(big.Float).SetPrec(1000)
		}
	}
	e[key][col].Add(e[key][col], x)
}

// check compares a store's sums with these.
func (e exactSums) check(t *rapid.T, s *Store) {
	var keys []uint64
	var sums []float32
	var want error
	for _, key := range slices.Sorted(maps.Keys(e)) {
		zero := true
		row := make([]float32, len(e[key]))
		for col, sum := range e[key] {
			row[col], _ = sum.Float32()
			if row[col] == 0 {
				row[col] = 0 // not -0
			}
			if zero = zero && sum.Sign() == 0; math.IsInf(float64(row[col]), 0) && want == nil {
				want = &SumError{Key: key, Column: col}
			}
		}
		if !zero {
			keys, sums = append(keys, key), append(sums, row...)
		}
	}
	gotKeys, gotSums, err := s.AppendSums(nil, nil)
	if fmt.Sprint(err) != fmt.Sprint(want) {
		t.Fatalf("%v; want %v", err, want)
	}
	if !slices.Equal(gotKeys, keys) || !slices.EqualFunc(gotSums, sums, sameBits) {
		t.Fatalf("keys %v, sums %x; exactly keys %v, sums %x", gotKeys, gotSums, keys, sums)
	}
}

// anyFinite draws finite float32, of any magnitude or multiples of the unit.
func anyFinite(exp int) *rapid.Generator[float32] {
	return rapid.Custom(func(t *rapid.T) float32 {
		if rapid.Bool().Draw(t, "fits") {
			return float32(math.Ldexp(float64(rapid.Int32Range(-1<<24, 1<<24).Draw(t, "units")), exp+rapid.IntRange(0, 38).Draw(t, "shift")))
		}
		return math.Float32frombits(rapid.Uint32Range(0, 1).Draw(t, "sign")<<31 | rapid.Uint32Range(0, 0x7f7fffff).Draw(t, "size"))
	})
}

// The sums of a store without an optimiser are the float32 nearest to the exact ones, whatever the
// magnitudes of gradients and of harvests, and in whatever order they come. A refused batch leaves
// nothing, nor does a step that has ended.
func TestSumsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dim, exp := rapid.IntRange(1, 3).Draw(t, "dim"), rapid.IntRange(-60, -20).Draw(t, "exp")
		s, err := New(Config{Dim: dim, Exp: exp, Optimizer: none, MaxRows: 16})
		if err != nil {
			t.Fatal(err)
		}
		hot := []uint64{3, 5, 1 << 60}
		key := rapid.OneOf(rapid.Uint64Range(0, 7), rapid.SampledFrom(hot))
		for step := range uint64(rapid.IntRange(1, 3).Draw(t, "steps")) {
			want := exactSums{}
			for i := range uint64(rapid.IntRange(1, 8).Draw(t, "parts")) {
				keys := rapid.SliceOfN(key, 1, 6).Draw(t, "keys")
				grads := rapid.SliceOfN(anyFinite(exp), len(keys)*dim, len(keys)*dim).Draw(t, "grads")
				switch rapid.IntRange(0, 4).Draw(t, "kind") {
				case 0: // a refused batch: of a row too many, or of a number that is not finite
					more := slices.Clone(keys)
					for i := range uint64(17) {
						more = append(more, 100+i)
					}
					bad, code := cold(more, append(slices.Clone(grads), make([]float32, 17*dim)...)), wire.CodeRowsFull
					if rapid.Bool().Draw(t, "infinite") {
						infinite := slices.Clone(grads)
						infinite[len(infinite)-1] = float32(math.Inf(1))
						bad, code = cold(keys, infinite), wire.CodeNotFinite
					}
					if err := s.Accumulate(bad); !errors.Is(err, wire.Refusal{Code: code}) {
						t.Fatalf("%v; want %v", err, code)
					}
					continue
				case 1:
					units := make([]int64, len(hot)*dim)
					for rank := range units {
						units[rank] = rapid.Int64().Draw(t, "units") >> rapid.IntRange(0, 63).Draw(t, "small")
						if units[rank] == 0 {
							continue // which is no row
						}
						x := new(big.Float).SetPrec(1000).SetInt64(units[rank])
						want.add(hot[rank/dim], rank%dim, dim, x.SetMantExp(x, exp))
					}
					if _, err := s.ApplyHarvest(Harvest{Instance: 1, Number: 100*step + i + 1, Sums: units}, hot); err != nil {
						t.Fatal(err)
					}
					continue
				case 2:
					err = s.Push(keys, grads)
				default:
					err = s.Accumulate(cold(keys, grads))
				}
				if err != nil {
					t.Fatal(err)
				}
				for i, x := range grads {
					want.add(keys[i/dim], i%dim, dim, new(big.Float).SetPrec(1000).SetFloat64(float64(x)))
				}
				if rapid.IntRange(0, 3).Draw(t, "look") == 0 {
					want.check(t, s)
				}
			}
			want.check(t, s)
			if n := s.Len(); n != len(want) {
				t.Fatalf("%d rows, want %d", n, len(want))
			}
			if rapid.Bool().Draw(t, "drop") {
				s.Drop()
			} else if n := s.Commit(); n != len(want) {
				t.Fatalf("%d rows are committed, want %d", n, len(want))
			}
			exactSums{}.check(t, s)
		}
	})
}

// The memory of wide sums is given back when steps no longer need them.
func TestMemoryOfWideSums(t *testing.T) {
	s := newStore(t, Config{Dim: 2, Exp: DefaultExp, Optimizer: none})
	for range 3 {
		if err := s.Push([]uint64{7}, []float32{1e-30, 1}); err != nil {
			t.Fatal(err)
		}
		s.Commit()
		for range wideIdle - 1 {
			s.Commit()
		}
		if s.wide.sums == nil || s.wide.index == nil {
			t.Error("the memory is gone early")
		}
	}
	s.Commit()
	if s.wide.sums != nil || s.wide.index != nil {
		t.Error("the memory is still there")
	}
	if err := s.Push([]uint64{7}, []float32{1e-30, 1}); err != nil {
		t.Fatal(err)
	}
	if _, sums := stepSums(t, s); !slices.Equal(sums, []float32{1e-30, 1}) {
		t.Error(sums)
	}
}

// A sum without a float32 ends its own step only. An error is of the sums for which it is returned,
// however often they are asked for.
func TestSumErrorIsOfItsStep(t *testing.T) {
	s := newStore(t, Config{Dim: 1, Optimizer: none})
	for range 2 {
		if err := s.Push([]uint64{7, 7}, []float32{math.MaxFloat32, math.MaxFloat32}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			var large *SumError
			if _, _, err := s.AppendSums(nil, nil); !errors.As(err, &large) || large.Key != 7 {
				t.Errorf("a sum that is too large: %v", err)
			}
		}
		s.Drop()
		if err := s.Push([]uint64{7}, []float32{3}); err != nil {
			t.Fatal(err)
		}
		if keys, sums := stepSums(t, s); !slices.Equal(keys, []uint64{7}) || !slices.Equal(sums, []float32{3}) {
			t.Errorf("the sums of keys %v of the next step are %v", keys, sums)
		}
		s.Commit()
	}
}

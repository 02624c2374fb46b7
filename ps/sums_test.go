// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"math/big"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/libra-ina/libra/internal/num/fixedpoint"
)

// part is one arrival: rows of gradients, or one sum.
type part struct {
	keys  []uint64
	grads []float32
}

func parts(t *rapid.T, dim int) []part {
	key := rapid.OneOf(rapid.Uint64Range(0, 20), rapid.Uint64())
	grad := rapid.Float32Range(-100, 100)
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) part {
		keys := rapid.SliceOfN(key, 1, 8).Draw(t, "keys")
		return part{keys, rapid.SliceOfN(grad, len(keys)*dim, len(keys)*dim).Draw(t, "grads")}
	}), 1, 12).Draw(t, "parts")
}

// TestOrderOfArrivalDoesNotMatter also sends part of the gradients as sums, like an aggregator.
func TestOrderOfArrivalDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(t)
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			arrivals := parts(t, cfg.Dim)
			for _, p := range arrivals {
				if err := a.Accumulate(cold(p.keys, p.grads)); err != nil {
					t.Fatal(err)
				}
			}
			format := fixedpoint.Format{Exp: cfg.Exp}
			for _, p := range rapid.Permutation(arrivals).Draw(t, "order") {
				for i, key := range p.keys {
					row := p.grads[i*cfg.Dim:][:cfg.Dim]
					if !rapid.Bool().Draw(t, "hot") {
						if err := b.Push([]uint64{key}, row); err != nil {
							t.Fatal(err)
						}
						continue
					}
					for c, g := range row {
						n, err := format.FromFloat32(g)
						if err != nil {
							t.Fatal(err)
						}
						if err := b.AddSum(key, c, n); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			if diff := cmp.Diff(pending(a), pending(b)); diff != "" {
				t.Fatalf("pending: %s", diff)
			}
			a.Commit()
			b.Commit()
			if a.Hash() != b.Hash() {
				t.Fatal("the weights differ")
			}
		}
	})
}

// TestCommitMatchesBigArithmetic adds in big integers, rounds once in big floats and applies the
// textbook optimiser.
func TestCommitMatchesBigArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(t)
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		cfg = s.Config()
		format := fixedpoint.Format{Exp: cfg.Exp}
		type row struct{ weights, squares []float32 }
		rows := make(map[uint64]*row)
		for range 3 {
			sums := make(map[uint64][]*big.Int)
			for _, p := range parts(t, cfg.Dim) {
				if err := s.Push(p.keys, p.grads); err != nil {
					t.Fatal(err)
				}
				for i, g := range p.grads {
					key := p.keys[i/cfg.Dim]
					if sums[key] == nil {
						for range cfg.Dim {
							sums[key] = append(sums[key], new(big.Int))
						}
					}
					n, err := format.FromFloat32(g)
					if err != nil {
						t.Fatal(err)
					}
					sums[key][i%cfg.Dim].Add(sums[key][i%cfg.Dim], big.NewInt(n))
				}
			}
			for key, sum := range sums {
				r := rows[key]
				if r == nil {
					r = &row{make([]float32, cfg.Dim), make([]float32, cfg.Dim)}
					cfg.Init.fillRow(key, r.weights)
					for c := range r.squares {
						r.squares[c] = cfg.Optimizer.InitialAccumulator
					}
					rows[key] = r
				}
				for c, n := range sum {
					v := new(big.Float).SetPrec(200).SetInt(n)
					g, _ := v.SetMantExp(v, cfg.Exp).Float32()
					step := cfg.Optimizer.LearningRate * g
					if cfg.Optimizer.Method == Adagrad {
						square := g * g
						r.squares[c] += square
						root, _ := new(big.Float).SetPrec(200).Sqrt(big.NewFloat(float64(r.squares[c])).SetPrec(200)).Float32()
						step /= root + cfg.Optimizer.Epsilon
					}
					r.weights[c] -= step
				}
			}
			s.Commit()
		}
		if s.Len() != len(rows) {
			t.Fatalf("%d rows, want %d", s.Len(), len(rows))
		}
		for key, r := range rows {
			if got := read(s, key); !slices.EqualFunc(got, r.weights, sameBits) {
				t.Fatalf("row %d: %v, want %v", key, got, r.weights)
			}
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package glm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"

	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/train/data"
)

// Shape is the size of a data set, whose rows are made up.
type Shape struct {
	Name    string
	Rows    int // of the whole data set
	Columns int
	// PerRow is the number of features of a row that are not zero.
	PerRow int
	// Ones is true if all of these are 1.
	Ones bool
}

// Shapes returns those of the data sets in Table II of the P4SGD paper. It tells no densities: they
// are those of the public data sets; that of amazon_fashion is chosen. Of avazu's 40 million rows
// there are 200,000.
func Shapes() []Shape {
	return []Shape{
		{Name: "gisette", Rows: 6_000, Columns: 5_000, PerRow: 4_955},
		{Name: "real_sim", Rows: 72_309, Columns: 20_958, PerRow: 51},
		{Name: "rcv1", Rows: 20_242, Columns: 47_236, PerRow: 74},
		{Name: "amazon_fashion", Rows: 200_000, Columns: 332_710, PerRow: 100},
		{Name: "avazu", Rows: 200_000, Columns: 1_000_000, PerRow: 15, Ones: true},
	}
}

func shapeOf(name string) Shape {
	all := Shapes()
	return all[slices.IndexFunc(all, func(s Shape) bool { return s.Name == name })]
}

// generate makes rows. Columns are drawn by Zipf's distribution, as words and categories are,
// unless nearly all occur in each row; a linear model with some noise decides the labels.
func (s Shape) generate(rows int) []data.Sample {
	rng := rand.New(rand.NewPCG(seed, uint64(s.Columns)))
	truth := make([]float64, s.Columns)
	for c := range truth {
		truth[c] = rng.NormFloat64()
	}
	words := zipf.New(s.Columns, 1)
	chosen := make([]bool, s.Columns)
	all := make([]data.Sample, rows)
	for i := range all {
		row := &all[i]
		if 2*s.PerRow > s.Columns {
			for c := range s.Columns {
				if rng.IntN(s.Columns) < s.PerRow {
					row.Keys = append(row.Keys, uint64(c))
				}
			}
		}
		for 2*s.PerRow <= s.Columns && len(row.Keys) < s.PerRow {
			if c := words.Draw(rng); !chosen[c] {
				chosen[c] = true
				row.Keys = append(row.Keys, uint64(c))
			}
		}
		slices.Sort(row.Keys)
		z := rng.NormFloat64()
		for _, c := range row.Keys {
			chosen[c] = false
			v := float32(1)
			if !s.Ones {
				v = float32(1+rng.IntN(1000)) / 1000
			}
			row.Values = append(row.Values, v)
			z += truth[c] * float64(v)
		}
		if z > 0 {
			row.Label = 1
		}
	}
	return all
}

// write writes rows in libsvm format.
func write(to io.Writer, rows []data.Sample) error {
	w := bufio.NewWriter(to)
	for _, r := range rows {
		fmt.Fprint(w, r.Label)
		for i, c := range r.Keys {
			fmt.Fprintf(w, " %d:%g", c, r.Values[i])
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// source reads rows in memory.
type source struct {
	rows []data.Sample
	at   int
}

func (s *source) Next(to *data.Sample) error {
	if s.at == len(s.rows) {
		return io.EOF
	}
	row := s.rows[s.at]
	to.Label, to.Keys, to.Values = row.Label, append(to.Keys[:0], row.Keys...), append(to.Values[:0], row.Values...)
	s.at++
	return nil
}

func (s *source) Rewind() error     { s.at = 0; return nil }
func (s *source) Shard() data.Shard { return data.Shard{Count: 1} }
func (s *source) Rows() int         { return s.at }
func (s *source) Close() error      { return nil }

// read reads all rows of a source.
func read(src data.Source) (rows []data.Sample, err error) {
	for {
		var row data.Sample
		err := src.Next(&row)
		if errors.Is(err, io.EOF) {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
}

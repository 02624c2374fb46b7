// SPDX-License-Identifier: Apache-2.0

package weights

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// The first fields of the lines of CSV.
const (
	csvFeature = "feature" // of the head
	csvBias    = "bias"
)

// decimal is the shortest number that reads as the same float32.
func decimal(x float32) string { return strconv.FormatFloat(float64(x), 'g', -1, 32) }

// number reads a weight.
func number(text string) (float32, error) {
	x, err := strconv.ParseFloat(strings.TrimSpace(text), 32)
	if err != nil || !finite([]float32{float32(x)}) {
		return 0, fmt.Errorf("%.40q is not a finite float32", text)
	}
	return float32(x), nil
}

// numbers reads weights into dst.
func numbers(dst []float32, texts []string) (err error) {
	for i, text := range texts {
		if dst[i], err = number(text); err != nil {
			return err
		}
	}
	return nil
}

// feature reads the index of a feature.
func feature(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == data.BiasKey {
		return 0, fmt.Errorf("feature %.40q is not an integer from 0 to 2^64-2", text)
	}
	return n, nil
}

func atLine(line int, err error) error { return fmt.Errorf("line %d: %w", line, err) }

var errTwice = errors.New("the feature comes twice")

// writeCSV writes a line for each feature, the intercept first.
func writeCSV(out io.Writer, w *Weights) error {
	c := csv.NewWriter(out)
	record := []string{csvFeature, "weight"}
	for k := range w.Factors {
		record = append(record, fmt.Sprintf("factor_%d", k+1))
	}
	_ = c.Write(record) // Error has what fails
	record[0], record[1] = csvBias, decimal(w.Bias)
	for k := range w.Factors {
		record[2+k] = "0"
	}
	_ = c.Write(record)
	for i, feature := range w.features {
		record[0] = strconv.FormatUint(feature, 10)
		for k, x := range w.row(i) {
			record[1+k] = decimal(x)
		}
		_ = c.Write(record)
	}
	c.Flush()
	return c.Error()
}

func readCSV(f *os.File) (*Weights, error) {
	in := csv.NewReader(bufio.NewReaderSize(f, 1<<16))
	in.ReuseRecord = true
	head, err := in.Read() // all lines must have the same number of fields
	if err != nil {
		return nil, err
	}
	b := builder{dim: len(head) - 1}
	if b.dim < 1 || b.dim > train.MaxFactors+1 || head[1] != "weight" {
		return nil, fmt.Errorf("line 1: columns feature, weight and at most %d factors are wanted, not %.60q",
			train.MaxFactors, strings.Join(head, ","))
	}
	row := make([]float32, b.dim)
	for line := 2; ; line++ {
		record, err := in.Read()
		if errors.Is(err, io.EOF) {
			return b.weights(), nil
		}
		if err != nil {
			return nil, err
		}
		if err := numbers(row, record[1:]); err != nil {
			return nil, atLine(line, err)
		}
		if record[0] == csvBias {
			b.bias = row[0]
			continue
		}
		key, err := feature(record[0])
		if err != nil {
			return nil, atLine(line, err)
		}
		if !b.add(key, row) {
			return nil, atLine(line, errTwice)
		}
	}
}

// The sections of a model that libFM saves (src/fm_core/fm_model.h, saveModel).
const (
	libfmBias   = "#global bias W0"
	libfmLinear = "#unary interactions Wj"
	libfmLatent = "#pairwise interactions Vj,f"
)

// maxDense is the largest number of feature lines in libFM's format.
const maxDense = 1 << 28

// writeLibFM writes the format of libFM's -save_model: without indices, but with a line for each
// from 0 to the largest.
func writeLibFM(out io.Writer, w *Weights) error {
	var lines uint64
	if n := len(w.features); n > 0 {
		if lines = w.features[n-1] + 1; lines > maxDense {
			return fmt.Errorf("libfm has a line for each index up to the largest, which is %d, and at most %d: choose another format", lines-1, maxDense)
		}
	}
	p := &printer{out: out}
	p.line(libfmBias)
	p.line(decimal(w.Bias))
	zeros := make([]float32, w.dim())
	section := func(title string, from, to int) {
		p.line(title)
		i := 0
		for key := range lines {
			row := zeros
			if w.features[i] == key {
				row = w.row(i)
				i++
			}
			p.weights("", row[from:to])
		}
	}
	section(libfmLinear, 0, 1)
	section(libfmLatent, 1, w.dim())
	return p.err
}

func readLibFM(f *os.File) (*Weights, error) {
	var (
		b       = builder{dim: 1}
		bias    []float32
		linear  []float32
		latent  []float32
		n       int // lines of latent
		section string
		row     [train.MaxFactors]float32
	)
	err := eachLine(f, func(line string) error {
		if strings.HasPrefix(line, "#") {
			section = line
			return nil
		}
		fields := strings.Fields(line)
		if len(fields) > len(row) {
			return fmt.Errorf("%d weights are more than %d factors", len(fields), len(row))
		}
		if err := numbers(row[:], fields); err != nil {
			return err
		}
		values := row[:len(fields)]
		switch {
		case section == libfmLatent && n > 0 && len(fields) != b.dim-1:
			return fmt.Errorf("%d factors, and %d in the lines before", len(fields), b.dim-1)
		case section == libfmLatent:
			latent, b.dim = append(latent, values...), len(fields)+1
			n++
		case len(fields) != 1:
			return fmt.Errorf("%d numbers where one is wanted", len(fields))
		case section == libfmBias:
			bias = append(bias, values...)
		case section == libfmLinear:
			linear = append(linear, values...)
		default:
			return fmt.Errorf("unknown section %.40q", section)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(bias) != 1 || n != len(linear) {
		return nil, fmt.Errorf("it has %d intercepts, %d linear weights and latent weights of %d features: one intercept and equal numbers are wanted", len(bias), len(linear), n)
	}
	b.bias = bias[0]
	all := make([]float32, b.dim)
	for j, weight := range linear {
		all[0] = weight
		copy(all[1:], latent[j*(b.dim-1):])
		// Otherwise the line only fills the gap between two features.
		if slices.ContainsFunc(all, func(x float32) bool { return x != 0 }) {
			b.add(uint64(j), all)
		}
	}
	return b.weights(), nil
}

// xlearnBias is the first line of xLearn's text model, as its option -t writes it; then follow a
// line i_INDEX for each linear weight, and a line v_INDEX for the latent weights.
const xlearnBias = "bias: "

func writeXLearn(out io.Writer, w *Weights) error {
	p := &printer{out: out}
	p.line(xlearnBias + decimal(w.Bias))
	for i, feature := range w.features {
		p.weights(fmt.Sprintf("i_%d: ", feature), w.row(i)[:1])
	}
	for i, feature := range w.features {
		if w.Factors > 0 {
			p.weights(fmt.Sprintf("v_%d: ", feature), w.row(i)[1:])
		}
	}
	return p.err
}

func readXLearn(f *os.File) (*Weights, error) {
	var (
		linear = builder{dim: 1}
		latent builder
		row    [train.MaxFactors]float32
	)
	err := eachLine(f, func(line string) error {
		name, rest, colon := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if !colon || len(fields) < 1 || len(fields) > len(row) {
			return fmt.Errorf("%.40q is not a name with 1 to %d weights", line, len(row))
		}
		if err := numbers(row[:], fields); err != nil {
			return err
		}
		if name == "bias" {
			linear.bias = row[0]
			return nil
		}
		to, index, _ := strings.Cut(name, "_")
		key, err := feature(index)
		if err != nil {
			return err
		}
		switch {
		case to == "i" && len(fields) != 1:
			return fmt.Errorf("%d numbers where one is wanted", len(fields))
		case to == "i" && !linear.add(key, row[:1]):
			return errTwice
		case to == "i":
		case to != "v":
			return fmt.Errorf("unknown weight %.40q", name)
		case latent.dim != 0 && latent.dim != len(fields):
			return fmt.Errorf("%d factors, and %d in the lines before", len(fields), latent.dim)
		case !latent.add(key, row[:len(fields)]):
			return errTwice
		default:
			latent.dim = len(fields)
		}
		return nil
	})
	if err != nil || latent.dim == 0 {
		return linear.weights(), err
	}
	if len(latent.keys) != len(linear.keys) {
		return nil, fmt.Errorf("it has linear weights of %d features and latent weights of %d", len(linear.keys),
			len(latent.keys))
	}
	b := builder{dim: 1 + latent.dim, bias: linear.bias}
	for i, key := range linear.keys {
		at, both := latent.index[key]
		if !both {
			return nil, fmt.Errorf("feature %d has a linear weight and no latent weights", key)
		}
		row[0] = linear.rows[i]
		b.add(key, append(row[:1:1], latent.rows[at*latent.dim:][:latent.dim]...))
	}
	return b.weights(), nil
}

// printer writes lines and keeps the first error.
type printer struct {
	out io.Writer
	buf []byte
	err error
}

func (p *printer) line(text string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.out, text+"\n")
	}
}

// weights writes a line of numbers.
func (p *printer) weights(prefix string, row []float32) {
	p.buf = append(p.buf[:0], prefix...)
	for i, x := range row {
		if i > 0 {
			p.buf = append(p.buf, ' ')
		}
		p.buf = strconv.AppendFloat(p.buf, float64(x), 'g', -1, 32)
	}
	p.buf = append(p.buf, '\n')
	if p.err == nil {
		_, p.err = p.out.Write(p.buf)
	}
}

// eachLine calls read for each line and names the line in its error.
func eachLine(f io.Reader, read func(string) error) error {
	lines := bufio.NewScanner(f)
	n := 0
	for lines.Scan() {
		n++
		if err := read(lines.Text()); err != nil {
			return atLine(n, err)
		}
	}
	return lines.Err()
}

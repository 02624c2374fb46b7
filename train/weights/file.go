// SPDX-License-Identifier: Apache-2.0

package weights

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/libra-ina/libra/internal/file"
)

// ErrFormat means that a file contains no weights in a format that Load supports.
var ErrFormat = errors.New("neither a checkpoint nor exported weights (csv, npz, libfm or xlearn)")

// A format writes weights and reads them.
type format struct {
	name  string
	begin string // of each file
	write func(io.Writer, *Weights) error
	read  func(*os.File) (*Weights, error)
}

var formats = []format{
	{"csv", csvFeature + ",", writeCSV, readCSV},
	{"npz", "PK\x03\x04", writeNPZ, readNPZ},
	{"libfm", libfmBias, writeLibFM, readLibFM},
	{"xlearn", xlearnBias, writeXLearn, readXLearn},
}

// Formats lists the formats of [Weights.Save].
func Formats() (names []string) {
	for _, f := range formats {
		names = append(names, f.name)
	}
	return names
}

// FormatOf returns the format for a file name's suffix, "" if there is none.
func FormatOf(path string) string {
	if name := strings.TrimPrefix(filepath.Ext(path), "."); slices.Contains(Formats(), name) {
		return name
	}
	return ""
}

// Save writes a file in one of [Formats], replacing an existing one.
func (w *Weights) Save(path, name string) error {
	i := slices.Index(Formats(), name)
	if i < 0 {
		return fmt.Errorf("weights: format %q is none of %s", name, strings.Join(Formats(), ", "))
	}
	err := file.Replace(path, "."+rand.Text()+".tmp", func(out io.Writer) error {
		buffered := bufio.NewWriterSize(out, 1<<16)
		return errors.Join(formats[i].write(buffered, w), buffered.Flush())
	})
	if err != nil {
		return fmt.Errorf("weights: writing %s: %w", path, err)
	}
	return nil
}

// Load reads a checkpoint or a file of [Weights.Save], which it distinguishes by their first bytes.
// Several files are the checkpoints of all servers of a job. Errors name the file, and the line in
// text files; they wrap [ErrFormat], or errors of packages ps and os.
func Load(paths ...string) (*Weights, error) {
	if len(paths) > 1 {
		return fromCheckpoints(paths...)
	}
	path := paths[0]
	f, err := file.Open(path)
	if err != nil {
		return nil, fmt.Errorf("weights: %w", err)
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("weights: %s: %w", path, err)
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte("libra-ps")) {
		return fromCheckpoints(path)
	}
	for _, format := range formats {
		if !bytes.HasPrefix(head, []byte(format.begin)) {
			continue
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("weights: %s: %w", path, err)
		}
		w, err := format.read(f)
		if err != nil {
			return nil, fmt.Errorf("%s: not weights in %s format: %w", path, format.name, err)
		}
		return w, nil
	}
	hint := ""
	switch {
	case n == 0:
		hint = ": the file is empty"
	case bytes.HasPrefix(head, []byte("LIBRAHOT")):
		hint = ": it is a hot set, which has no weights"
	case strings.ContainsAny(string(head[:1]), "-0123456789"):
		hint = ": it may be data, which --data takes"
	}
	return nil, fmt.Errorf("%s: %w%s", path, ErrFormat, hint)
}

// builder collects the rows of a file, in any order.
type builder struct {
	dim   int // of the rows; 0: not yet known
	bias  float32
	index map[uint64]int
	keys  []uint64
	rows  []float32
}

// add appends a row. It returns false if the feature already has one.
func (b *builder) add(feature uint64, row []float32) bool {
	if b.index == nil {
		b.index = map[uint64]int{}
	}
	if _, twice := b.index[feature]; twice {
		return false
	}
	b.index[feature] = len(b.keys)
	b.keys = append(b.keys, feature)
	b.rows = append(b.rows, row...)
	return true
}

// weights sorts the collected rows.
func (b *builder) weights() *Weights {
	w := &Weights{Factors: b.dim - 1, Bias: b.bias, features: slices.Sorted(slices.Values(b.keys)),
		rows: make([]float32, 0, len(b.rows))}
	for _, feature := range w.features {
		w.rows = append(w.rows, b.rows[b.index[feature]*b.dim:][:b.dim]...)
	}
	return w
}

// finite reports whether all weights are numbers.
func finite(weights []float32) bool {
	return !slices.ContainsFunc(weights, func(x float32) bool {
		return math.IsNaN(float64(x)) || math.IsInf(float64(x), 0)
	})
}

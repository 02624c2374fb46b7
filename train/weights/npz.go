// SPDX-License-Identifier: Apache-2.0

package weights

import (
	"archive/zip"
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/libra-ina/libra/train"
	"github.com/libra-ina/libra/train/data"
)

// The arrays of a NumPy archive, and the types of their elements.
const (
	npzBias     = "bias"     // float32, a scalar
	npzFeatures = "features" // uint64, ascending
	npzWeights  = "weights"  // float32, one for each feature
	npzFactors  = "factors"  // float32, features × factors; absent without factors

	npyFloat32 = "<f4"
	npyUint64  = "<u8"
)

// writeNPZ writes an archive of arrays as numpy.savez does: a zip file of .npy files.
// The format is that of numpy.lib.format.
func writeNPZ(out io.Writer, w *Weights) error {
	z := zip.NewWriter(out)
	array := func(name, kind string, shape []int, write func(io.Writer) error) error {
		f, err := z.CreateHeader(&zip.FileHeader{Name: name + ".npy", Method: zip.Store})
		if err != nil {
			return err
		}
		buffered := bufio.NewWriterSize(f, 1<<16)
		return errors.Join(npyHead(buffered, kind, shape), write(buffered), buffered.Flush())
	}
	n := len(w.features)
	columns := func(from, to int) func(io.Writer) error {
		return func(out io.Writer) error {
			for i := range n {
				if err := binary.Write(out, binary.LittleEndian, w.row(i)[from:to]); err != nil {
					return err
				}
			}
			return nil
		}
	}
	err := errors.Join(
		array(npzBias, npyFloat32, nil, func(out io.Writer) error { return binary.Write(out, binary.LittleEndian, w.Bias) }),
		array(npzFeatures, npyUint64, []int{n}, func(out io.Writer) error {
			return binary.Write(out, binary.LittleEndian, w.features)
		}),
		array(npzWeights, npyFloat32, []int{n}, columns(0, 1)),
	)
	if err == nil && w.Factors > 0 {
		err = array(npzFactors, npyFloat32, []int{n, w.Factors}, columns(1, w.dim()))
	}
	return errors.Join(err, z.Close())
}

// npyMagic begins an array file of version 1.0.
const npyMagic = "\x93NUMPY\x01\x00"

// npyHead writes the header before the elements, which begin at a multiple of 64 bytes.
func npyHead(out io.Writer, kind string, shape []int) error {
	var dims strings.Builder
	for _, n := range shape {
		fmt.Fprintf(&dims, "%d,", n)
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", kind, dims.String())
	const fixed = len(npyMagic) + 2 + 1 // a length before, a newline after
	dict += strings.Repeat(" ", 63-(fixed+len(dict)+63)%64) + "\n"
	_, err := out.Write(append(binary.LittleEndian.AppendUint16([]byte(npyMagic), uint16(len(dict))), dict...))
	return err
}

var npyDict = regexp.MustCompile(`^\{'descr': '(.{3})', 'fortran_order': False, 'shape': \(([0-9, ]*)\), \}\s*$`)

// readArray reads one array of an archive. Its number of elements is that of shape; nil if the
// archive has no such array.
func readArray[T float32 | uint64](z *zip.Reader, name, kind string) (elements []T, shape []int, err error) {
	i := slices.IndexFunc(z.File, func(f *zip.File) bool { return f.Name == name+".npy" })
	if i < 0 {
		return nil, nil, nil
	}
	f, err := z.File[i].Open()
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<16)
	head := make([]byte, len(npyMagic)+2)
	if _, err := io.ReadFull(in, head); err != nil || string(head[:len(npyMagic)]) != npyMagic {
		return nil, nil, fmt.Errorf("array %s is not in .npy format 1.0", name)
	}
	dict := make([]byte, binary.LittleEndian.Uint16(head[len(npyMagic):]))
	if _, err := io.ReadFull(in, dict); err != nil {
		return nil, nil, fmt.Errorf("array %s ends in its head", name)
	}
	m := npyDict.FindStringSubmatch(string(dict))
	if m == nil || m[1] != kind {
		return nil, nil, fmt.Errorf("array %s: elements %s in C order are wanted, its head is %.90q", name, kind, dict)
	}
	total := 1
	for _, text := range strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1<<31 {
			return nil, nil, fmt.Errorf("array %s: shape (%s)", name, m[2])
		}
		shape = append(shape, n)
		if total *= n; total > 1<<48 || len(shape) > 2 {
			return nil, nil, fmt.Errorf("array %s: shape (%s)", name, m[2])
		}
	}
	// Allocated as data arrives, so that a wrong shape cannot demand more memory than the file's
	// length.
	for part := make([]T, 1<<14); total > 0; total -= len(part) {
		part = part[:min(len(part), total)]
		if err := binary.Read(in, binary.LittleEndian, part); err != nil {
			return nil, nil, fmt.Errorf("array %s has less elements than its shape (%s): %w", name, m[2], err)
		}
		elements = append(elements, part...)
	}
	return elements, shape, nil
}

func readNPZ(f *os.File) (*Weights, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	z, err := zip.NewReader(f, info.Size())
	if err != nil {
		return nil, err
	}
	bias, _, err1 := readArray[float32](z, npzBias, npyFloat32)
	features, _, err2 := readArray[uint64](z, npzFeatures, npyUint64)
	weights, _, err3 := readArray[float32](z, npzWeights, npyFloat32)
	factors, shape, err4 := readArray[float32](z, npzFactors, npyFloat32)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	b := builder{dim: 1}
	if shape != nil {
		if len(shape) != 2 || shape[0] != len(features) || shape[1] < 1 || shape[1] > train.MaxFactors {
			return nil, fmt.Errorf("array %s has shape %v: a row for each of the %d features and at most %d columns are wanted", npzFactors, shape, len(features), train.MaxFactors)
		}
		b.dim += shape[1]
	}
	if len(bias) != 1 || len(weights) != len(features) {
		return nil, fmt.Errorf("arrays %s, %s and %s have %d, %d and %d elements: one, and equal numbers are wanted",
			npzBias, npzFeatures, npzWeights, len(bias), len(features), len(weights))
	}
	if b.bias = bias[0]; !finite(bias) || !finite(weights) || !finite(factors) {
		return nil, errors.New("not all weights are finite numbers")
	}
	row := make([]float32, b.dim)
	for i, key := range features {
		row[0] = weights[i]
		copy(row[1:], factors[i*(b.dim-1):])
		if key == data.BiasKey || !b.add(key, row) {
			return nil, fmt.Errorf("feature %d: %w, or is no feature", key, errTwice)
		}
	}
	return b.weights(), nil
}

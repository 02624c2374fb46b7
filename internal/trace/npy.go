// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"regexp"
	"strings"
)

// The element types of the arrays, as NumPy names them.
const (
	typeUint64  = "<u8"
	typeFloat32 = "<f4"
)

// headSize is the length of every head: it is written again when the number of rows is known.
const headSize = 128

const magic = "\x93NUMPY\x01\x00"

// head returns the head of an array of format 1.0 (numpy.lib.format), with columns 0 for a vector.
func head(kind string, rows, columns int) []byte {
	shape := fmt.Sprintf("(%d,)", rows)
	if columns > 0 {
		shape = fmt.Sprintf("(%d, %d)", rows, columns)
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", kind, shape)
	const fixed = len(magic) + 2
	dict += strings.Repeat(" ", headSize-fixed-1-len(dict)) + "\n"
	return append(binary.LittleEndian.AppendUint16([]byte(magic), uint16(len(dict))), dict...)
}

// arrayWriter writes an array of which the number of rows is not known before.
type arrayWriter struct {
	file    *os.File
	out     *bufio.Writer
	sum     hash.Hash32
	kind    string
	columns int // 0: a vector
	scratch []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func createArray(path, kind string, columns int) (*arrayWriter, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	w := &arrayWriter{file: f, out: bufio.NewWriterSize(f, 1<<16), sum: crc32.New(castagnoli), kind: kind,
		columns: columns}
	_, err = w.out.Write(head(kind, 0, columns))
	return w, err
}

// write appends elements, which the caller has put into the scratch of the writer.
func (w *arrayWriter) write() error {
	_, _ = w.sum.Write(w.scratch) // never fails
	_, err := w.out.Write(w.scratch)
	w.scratch = w.scratch[:0]
	return err
}

// finish writes the head again, and has everything on the disk.
func (w *arrayWriter) finish(rows int) error {
	if err := w.out.Flush(); err != nil {
		return err
	}
	if _, err := w.file.WriteAt(head(w.kind, rows, w.columns), 0); err != nil {
		return err
	}
	return w.file.Sync()
}

var dictOf = regexp.MustCompile(`^\{'descr': '(.{3})', 'fortran_order': False, 'shape': (\([0-9, ]*\)), \}\s*$`)

// readArray reads the elements of an array of which type, shape and checksum are known, and has
// take process them, some at a time.
func readArray(path, kind string, rows, columns int, checksum uint32, take func([]byte)) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: %s", err, again)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	in := bufio.NewReaderSize(f, 1<<16)
	start := make([]byte, len(magic)+2)
	if _, err := io.ReadFull(in, start); err != nil || string(start[:len(magic)]) != magic {
		return fmt.Errorf("%s is no NumPy array of format 1.0: %s", path, again)
	}
	dict := make([]byte, binary.LittleEndian.Uint16(start[len(magic):]))
	if _, err := io.ReadFull(in, dict); err != nil {
		return fmt.Errorf("%s ends in its head: %s", path, again)
	}
	want := dictOf.FindSubmatch(head(kind, rows, columns)[len(start):])
	got := dictOf.FindSubmatch(dict)
	if got == nil || string(got[1]) != kind || string(got[2]) != string(want[2]) {
		return fmt.Errorf("%s: %s gives it elements %s and the shape %s, but its head is %.100q: %s", path, IndexName,
			kind, want[2], dict, again)
	}
	size := int64(rows) * int64(max(1, columns)) * elementSize(kind)
	if has := info.Size() - int64(len(start)+len(dict)); has != size {
		return fmt.Errorf("%s has %d bytes of elements, and its shape %s needs %d: it was cut short or changed; %s", path, has,
			want[2], size, again)
	}
	sum := crc32.New(castagnoli)
	part := make([]byte, 1<<16)
	for size > 0 {
		part = part[:min(int64(len(part)), size)]
		if _, err := io.ReadFull(in, part); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		_, _ = sum.Write(part)
		take(part)
		size -= int64(len(part))
	}
	if sum.Sum32() != checksum {
		return fmt.Errorf("%s is not the file that %s describes (checksum %#08x instead of %#08x): it was changed, or is of another trace; %s",
			path, IndexName, sum.Sum32(), checksum, again)
	}
	return nil
}

func elementSize(kind string) int64 {
	if kind == typeFloat32 {
		return 4
	}
	return 8
}

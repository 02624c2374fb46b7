// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"unicode/utf8"

	"github.com/libra-ina/libra/internal/file"
)

// ErrEmpty means that a data file contains no rows.
var ErrEmpty = errors.New("data: the file holds no rows")

// SyntaxError is the place at which a data file is malformed.
type SyntaxError struct {
	File         string
	Line, Column int // from 1; Column counts bytes
	Problem      string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Problem)
}

// File is a [Source] that streams a file in the format of libFM and LIBSVM, plain or compressed by
// gzip: one row per line, a label and any number of index:value pairs, separated by blanks. In the
// format of LIBFFM they are field:index:value; the field, a non-negative integer, is ignored.
// Labels of classification are -1 and 1, or 0 and 1, and labels of regression finite numbers;
// indices are non-negative integers other than [BiasKey]; values are finite. Lines may have any
// length. Of rows of other shards only the kind is read, of the label and of the first pair: it
// must be the same in the whole file, and each worker sees its own rows alone.
type File struct {
	name  string
	task  Task
	shard Shard
	file  *os.File
	in    *bufio.Reader
	long  []byte // a line longer than the buffer of in

	line     int  // of the line last read
	rows     int  // of all shards, so far
	negative int8 // the label that means "no click" in this file; 1: not yet known
	colons   int  // colons in this file's pairs; 0: not yet known
}

var _ Source = (*File)(nil)

// OpenFile opens a data file. Next returns a [*SyntaxError] for a malformed row. A caller that does
// not use labels opens it for [Regression], which accepts any number.
func OpenFile(name string, task Task, shard Shard) (*File, error) {
	shard, err := shard.normal()
	if err != nil {
		return nil, err
	}
	opened, err := file.Open(name)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	f := &File{name: name, task: task, shard: shard, file: opened, negative: 1}
	if err := f.Rewind(); err != nil {
		opened.Close()
		return nil, err
	}
	return f, nil
}

// Shard returns the rows that the source yields.
func (f *File) Shard() Shard { return f.shard }

// Rows returns the number of rows of this pass so far.
func (f *File) Rows() int { return f.rows }

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Rewind starts again at the first row.
func (f *File) Rewind() error {
	if _, err := f.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	f.line, f.rows = 0, 0
	return f.reset(f.file)
}

// readBuffer is the number of bytes that are read from a file at once.
const readBuffer = 65536

// reset starts reading r.
func (f *File) reset(r io.Reader) error {
	in, err := NewReader(r)
	if err != nil {
		return fmt.Errorf("data: %s: %w", f.name, err)
	}
	f.in = in
	return nil
}

// NewReader returns a reader of text, plain or compressed by gzip.
func NewReader(r io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(r, readBuffer)
	if magic, _ := in.Peek(2); string(magic) != "\x1f\x8b" {
		return in, nil
	}
	z, err := gzip.NewReader(in)
	return bufio.NewReaderSize(z, readBuffer), err
}

// Next stores the shard's next row in s.
func (f *File) Next(s *Sample) error {
	for {
		line, err := f.readLine()
		if errors.Is(err, io.EOF) {
			if f.rows == 0 {
				return fmt.Errorf("%w: %s: give one with a row a line, as in 1 3:1 7:0.5", ErrEmpty, f.name)
			}
			return io.EOF
		}
		if err != nil {
			return fmt.Errorf("data: %s: after line %d: %w", f.name, f.line, err)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		f.rows++
		if (f.rows-1)%f.shard.Count == f.shard.Index {
			return f.parse(line, s)
		}
		if err := f.checkKind(line); err != nil {
			return err
		}
	}
}

// readLine returns the next line without its end. The last line need not have
// one.
func (f *File) readLine() ([]byte, error) {
	f.long = f.long[:0]
	for {
		part, err := f.in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			f.long = append(f.long, part...)
			continue
		}
		if err != nil && (!errors.Is(err, io.EOF) || len(part)+len(f.long) == 0) {
			return nil, err
		}
		f.line++
		if len(f.long) > 0 {
			f.long = append(f.long, part...)
			part = f.long
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(part, []byte("\n")), []byte("\r")), nil
	}
}

// checkKind reports that a row of another shard has a label or pairs of another kind than the rows
// before it.
func (f *File) checkKind(line []byte) error {
	begin, end := token(line, 0)
	if f.task == Classification {
		if problem := f.label(line[begin:end], &Sample{}); problem != "" {
			return f.malformed(begin, problem)
		}
	}
	begin, end = token(line, end)
	colons := bytes.Count(line[begin:end], []byte(":"))
	if colons == 0 { // another worker reports it, if it is no empty row
		return nil
	}
	return f.checkColons(line[begin:end], begin, colons)
}

// checkColons reports that a pair has more or fewer colons than those before it.
func (f *File) checkColons(pair []byte, begin, colons int) error {
	if f.colons == 0 {
		f.colons = colons
	}
	if colons != f.colons || colons > 2 {
		return f.malformed(begin,
			fmt.Sprintf("%.40q has %d colons: all pairs of a file are index:value, or all are field:index:value", pair, colons))
	}
	return nil
}

// parse stores the row in line in s.
func (f *File) parse(line []byte, s *Sample) error {
	s.Keys, s.Values = s.Keys[:0], s.Values[:0]
	begin, end := token(line, 0)
	if problem := f.label(line[begin:end], s); problem != "" {
		return f.malformed(begin, problem)
	}
	for {
		begin, end = token(line, end)
		if begin == end {
			return nil
		}
		pair := line[begin:end]
		colons := bytes.Count(pair, []byte(":"))
		if pair[0] == '#' {
			return f.malformed(begin, fmt.Sprintf("%.40q: this is a comment, which the format does not have: remove it", pair))
		}
		if colons == 0 {
			return f.malformed(begin, fmt.Sprintf("%.40q is not an index:value pair; %s", pair, rowFormat))
		}
		if err := f.checkColons(pair, begin, colons); err != nil {
			return err
		}
		if colons == 2 {
			field, rest, _ := bytes.Cut(pair, []byte(":"))
			if _, err := strconv.ParseUint(string(field), 10, 64); err != nil {
				return f.malformed(begin, fmt.Sprintf("field %.40q is not an integer from 0 on", field))
			}
			begin += len(field) + 1
			pair = rest
		}
		colon := bytes.IndexByte(pair, ':')
		key, err := strconv.ParseUint(string(pair[:colon]), 10, 64)
		if err != nil || key == BiasKey {
			return f.malformed(begin, fmt.Sprintf("feature index %.40q is not an integer from 0 to 2^64-2", pair[:colon]))
		}
		value := float32(1)
		if text := pair[colon+1:]; len(text) != 1 || text[0] != '1' {
			v, err := strconv.ParseFloat(string(text), 32)
			if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
				return f.malformed(begin+colon+1, fmt.Sprintf("feature value %.40q is not a finite float32", text))
			}
			value = float32(v)
		}
		s.Keys = append(s.Keys, key)
		s.Values = append(s.Values, value)
	}
}

// rowFormat is the remedy for data in another format.
const rowFormat = "rows are in libfm, libsvm or libffm format, a label and the features that are not zero, as in 1 3:1 7:0.5"

// label stores the label in s or returns its error.
func (f *File) label(text []byte, s *Sample) (problem string) {
	v, err := strconv.ParseFloat(string(text), 32)
	switch {
	case err == nil && f.task == Regression && !math.IsNaN(v) && !math.IsInf(v, 0):
		s.Label = float32(v)
	case err == nil && v == 1:
		s.Label = 1
	case err == nil && (v == 0 || v == -1):
		if f.negative == 1 {
			f.negative = int8(v)
		}
		if f.negative != int8(v) {
			return fmt.Sprintf("label %s in a file whose negative label is %d: write one of them for all rows without a click, or choose task regression (objective square of libra glm) for three values",
				text, f.negative)
		}
		s.Label = 0
	case bytes.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || r < ' ' }):
		return fmt.Sprintf("label %.40q: this is no text; %s", text, rowFormat)
	case bytes.HasPrefix(text, []byte("#")):
		return fmt.Sprintf("label %.40q: this is a comment, which the format does not have: remove it", text)
	case bytes.Contains(text, []byte(":")):
		return fmt.Sprintf("label %.40q: this is a pair: begin each row with a label, 0 where there is none; %s", text, rowFormat)
	case bytes.ContainsAny(text, ",;"):
		return fmt.Sprintf("label %.40q: this may be CSV; %s", text, rowFormat)
	case f.task == Regression:
		return fmt.Sprintf("label %.40q is not a finite float32; %s", text, rowFormat)
	case err == nil && !math.IsNaN(v) && !math.IsInf(v, 0):
		return fmt.Sprintf("label %.40q is not 1, 0 or -1: to predict numbers and not clicks, choose task regression (objective square of libra glm)", text)
	default:
		return fmt.Sprintf("label %.40q is not 1, 0 or -1; %s", text, rowFormat)
	}
	return ""
}

func (f *File) malformed(offset int, problem string) error {
	return &SyntaxError{f.name, f.line, offset + 1, problem}
}

// token returns the bounds of the next run of non-blanks at or after i.
func token(line []byte, i int) (begin, end int) {
	for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
		i++
	}
	begin = i
	for i < len(line) && line[i] != ' ' && line[i] != '\t' {
		i++
	}
	return begin, i
}

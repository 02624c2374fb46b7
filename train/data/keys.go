// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// Keys are the keys of pushes, as the van of ps-lite writes them: a text file with one push a line,
// its keys as decimal numbers with spaces between, or a folder of such files, *.keys. As a [Source]
// each push is a sample without values and label. A last line without its end, of a program that
// was killed, is left out.
type Keys struct {
	names []string

	at     int // in names
	file   *os.File
	reader *bufio.Reader
	line   int // in file
	long   []byte
	rows   int
}

// OpenKeys opens a file or a folder.
func OpenKeys(path string) (*Keys, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	k := &Keys{names: []string{path}}
	if info.IsDir() {
		if k.names, err = keyFiles(path); err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
		if len(k.names) == 0 {
			return nil, fmt.Errorf("data: %s has no file *.keys: give a folder that LIBRA_KEYS_OUT named, or a file of it", path)
		}
	}
	return k, k.Rewind()
}

// keyFiles returns the paths of a folder's files, in the order of their names.
func keyFiles(folder string) (paths []string, err error) {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".keys" {
			paths = append(paths, filepath.Join(folder, e.Name()))
		}
	}
	return paths, err
}

// Shard returns that the source yields all pushes.
func (k *Keys) Shard() Shard { return Shard{Index: 0, Count: 1} }

// Rows returns the number of pushes of this pass so far.
func (k *Keys) Rows() int { return k.rows }

// Close closes the file that is being read.
func (k *Keys) Close() error {
	if k.file == nil {
		return nil
	}
	err := k.file.Close()
	k.file = nil
	return err
}

// Rewind starts again at the first push.
func (k *Keys) Rewind() error {
	k.at, k.rows = -1, 0
	return k.open()
}

// open opens the next file; there is one.
func (k *Keys) open() (err error) {
	if err = k.Close(); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	k.at++
	k.line = 0
	if k.file, err = os.Open(k.names[k.at]); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	k.reader = bufio.NewReaderSize(k.file, 1<<16)
	return nil
}

// Next stores the keys of the next push in s.
func (k *Keys) Next(s *Sample) error {
	for {
		line, err := k.next()
		switch {
		case err == nil:
			k.line++
			k.rows++
			return k.parse(line, s)
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("data: %s: %w", k.names[k.at], err)
		case k.at+1 == len(k.names):
			return io.EOF
		}
		if err := k.open(); err != nil {
			return err
		}
	}
}

// next returns the next whole line, however long, without its end.
func (k *Keys) next() ([]byte, error) {
	k.long = k.long[:0]
	for {
		part, err := k.reader.ReadSlice('\n')
		if err == nil && len(k.long) == 0 {
			return part[:len(part)-1], nil
		}
		k.long = append(k.long, part...)
		if err == nil {
			return k.long[:len(k.long)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

func (k *Keys) parse(line []byte, s *Sample) error {
	*s = Sample{Keys: s.Keys[:0]}
	for rest, more := line, true; more; {
		var word []byte
		word, rest, more = bytes.Cut(rest, []byte{' '})
		key, err := strconv.ParseUint(string(word), 10, 64)
		if err != nil {
			return fmt.Errorf("data: %s:%d: %.30q is no key: give a file of LIBRA_KEYS_OUT, with the keys of a push in each line as in 17 40 41",
				k.names[k.at], k.line, word)
		}
		s.Keys = append(s.Keys, key)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/libra-ina/libra/internal/file"
)

// A hot-set file is big-endian throughout:
//
//	bytes 0-7    "LIBRAHOT"
//	bytes 8-11   format version, uint32
//	bytes 12-15  row dimension, uint32
//	bytes 16-23  number of keys n, uint64
//	bytes 24-71  Meta: Rate (float64), Seed, Rows, Updates, Covered, CountErr (uint64 each)
//	then         n keys in rank order, n counts, uint64 each
//	last 32      SHA-256 of everything before
const (
	hotSetMagic   = "LIBRAHOT"
	hotSetVersion = 1
	hotSetHeadLen = 72
)

// Errors of the hot-set reader, in addition to [ErrHotSet].
var (
	// ErrNotHotSet means that the data is not a hot set.
	ErrNotHotSet = errors.New("packer: not a hot-set file")
	// ErrVersion means that the format version of the file differs.
	ErrVersion = errors.New("packer: unsupported hot-set file version")
	// ErrCorrupt means that the file is truncated or modified, or that data follows its
	// end.
	ErrCorrupt = errors.New("packer: hot-set file is corrupt")
)

// WriteTo encodes the hot set.
func (h *HotSet) WriteTo(w io.Writer) (int64, error) {
	digest := sha256.New()
	buffered := bufio.NewWriter(io.MultiWriter(w, digest))
	head := make([]byte, 0, hotSetHeadLen)
	head = append(head, hotSetMagic...)
	head = binary.BigEndian.AppendUint32(head, hotSetVersion)
	head = binary.BigEndian.AppendUint32(head, uint32(h.dim))
	m := h.meta
	for _, v := range []uint64{uint64(len(h.keys)), math.Float64bits(m.Rate), m.Seed, m.Rows, m.Updates, m.Covered,
		m.CountErr} {
		head = binary.BigEndian.AppendUint64(head, v)
	}
	// A bufio.Writer keeps its first error, and Flush returns it.
	_, _ = buffered.Write(head)
	var b [8]byte
	for _, list := range [][]uint64{h.keys, h.counts} {
		for _, v := range list {
			binary.BigEndian.PutUint64(b[:], v)
			_, _ = buffered.Write(b[:])
		}
	}
	if err := buffered.Flush(); err != nil {
		return 0, fmt.Errorf("packer: write hot set: %w", err)
	}
	if _, err := w.Write(digest.Sum(nil)); err != nil {
		return 0, fmt.Errorf("packer: write hot set: %w", err)
	}
	return int64(hotSetHeadLen + 16*len(h.keys) + sha256.Size), nil
}

// ReadHotSet decodes one hot set from r and reads no further. It returns
// [ErrNotHotSet], [ErrVersion], [ErrHotSet], [ErrCorrupt] or the error of r.
func ReadHotSet(r io.Reader) (*HotSet, error) {
	digest := sha256.New()
	in := &countingReader{r: io.TeeReader(r, digest)}
	var head [hotSetHeadLen]byte
	if err := in.readFull(head[:]); err != nil {
		if string(head[:min(in.n, len(hotSetMagic))]) != hotSetMagic[:min(in.n, len(hotSetMagic))] {
			return nil, fmt.Errorf("%w: it begins with %q", ErrNotHotSet, head[:min(in.n, len(hotSetMagic))])
		}
		return nil, err
	}
	if magic := string(head[:8]); magic != hotSetMagic {
		return nil, fmt.Errorf("%w: it begins with %q", ErrNotHotSet, magic)
	}
	if v := binary.BigEndian.Uint32(head[8:]); v != hotSetVersion {
		return nil, fmt.Errorf("%w: %d; this program reads version %d", ErrVersion, v, hotSetVersion)
	}
	dim, n := binary.BigEndian.Uint32(head[12:]), binary.BigEndian.Uint64(head[16:])
	if n > maxHotKeys || dim < 1 || dim > maxDim {
		return nil, fmt.Errorf("%w: the file announces %d keys of dimension %d", ErrHotSet, n, dim)
	}
	meta := Meta{
		Rate:     math.Float64frombits(binary.BigEndian.Uint64(head[24:])),
		Seed:     binary.BigEndian.Uint64(head[32:]),
		Rows:     binary.BigEndian.Uint64(head[40:]),
		Updates:  binary.BigEndian.Uint64(head[48:]),
		Covered:  binary.BigEndian.Uint64(head[56:]),
		CountErr: binary.BigEndian.Uint64(head[64:]),
	}
	rows, err := in.readUint64s(2 * int(n)) // keys, then counts
	if err != nil {
		return nil, err
	}
	want := [sha256.Size]byte(digest.Sum(nil))
	var got [sha256.Size]byte
	if err := in.readFull(got[:]); err != nil {
		return nil, err
	}
	if got != want {
		return nil, fmt.Errorf("%w: its checksum is %x, stored is %x", ErrCorrupt, want[:4], got[:4])
	}
	return NewHotSet(int(dim), rows[:n], rows[n:], meta)
}

// countingReader reads fixed-size parts and counts bytes.
type countingReader struct {
	r io.Reader
	n int
}

func (c *countingReader) readFull(b []byte) error {
	n, err := io.ReadFull(c.r, b)
	c.n += n
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends after %d bytes", ErrCorrupt, c.n)
	}
	if err != nil {
		return fmt.Errorf("packer: read hot set at byte %d: %w", c.n, err)
	}
	return nil
}

// readUint64s reads n numbers. It allocates as they arrive, so that a damaged
// count cannot demand more memory than the input is long.
func (c *countingReader) readUint64s(n int) ([]uint64, error) {
	var list []uint64
	var b [8192]byte
	for len(list) < n {
		part := b[:min(len(b), 8*(n-len(list)))]
		if err := c.readFull(part); err != nil {
			return nil, err
		}
		for ; len(part) > 0; part = part[8:] {
			list = append(list, binary.BigEndian.Uint64(part))
		}
	}
	return list, nil
}

// SaveHotSet writes a hot-set file. It replaces the file atomically: a reader, also after
// a power failure, sees the complete old or new file. A replaced file keeps its
// permissions; a new one has mode 0644 less the umask.
func SaveHotSet(path string, h *HotSet) error {
	err := file.Replace(path, "."+rand.Text()+".tmp", func(w io.Writer) error {
		_, err := h.WriteTo(w)
		return err
	})
	if err != nil {
		return fmt.Errorf("packer: save hot set: %w", err)
	}
	return nil
}

// LoadHotSet reads a hot-set file. It returns the errors of [ReadHotSet], with the
// path.
func LoadHotSet(path string) (*HotSet, error) {
	f, err := file.Open(path)
	if err != nil {
		return nil, fmt.Errorf("packer: load hot set: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	r := bufio.NewReader(f)
	h, err := ReadHotSet(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := r.ReadByte(); err != io.EOF {
		return nil, fmt.Errorf("%s: %w: bytes follow its end", path, ErrCorrupt)
	}
	return h, nil
}

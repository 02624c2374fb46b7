package ps

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
)

// Errors of [Restore] and [ReadCheckpoint]. They are wrapped with what was
// found.
var (
	// ErrNotCheckpoint says that a file is something else.
	ErrNotCheckpoint = errors.New("ps: not a checkpoint")
	// ErrVersion says that another version of the format wrote a checkpoint.
	ErrVersion = errors.New("ps: unsupported checkpoint version")
	// ErrCorrupt says that a checkpoint is truncated or damaged.
	ErrCorrupt = errors.New("ps: checkpoint is corrupt")
	// ErrMismatch says that a checkpoint belongs to a job with another
	// configuration.
	ErrMismatch = errors.New("ps: checkpoint does not fit the configuration")
)

// A checkpoint is little-endian:
//
//	magic "libra-ps", version uint32
//	dim, exp, method, scale bits, uint32 each; seed, harvest instance, harvest number, rows, attachment length, uint64 each
//	CRC-32C of everything so far, uint32
//	the attachment
//	rows: key uint64, pending uint8, Dim weights float32, under Adagrad Dim
//	      squares float32, and if pending is 1 Dim sums int64
//	CRC-32C of everything so far, uint32
//
// Rows come in the order of their keys, so equal stores make equal files.
const (
	checkpointMagic   = "libra-ps"
	checkpointVersion = 2
	checkpointHeadLen = len(checkpointMagic) + 4 + 4*4 + 5*8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checkpoint writes the store to a file: weights, optimiser state, the sums of
// the open step and the id of the last harvest. Together with them it writes the
// attachment, which is the caller's: what must be as old as the sums are, such as
// the duplicate filter of the flows that fed them. The file is replaced
// atomically: after a crash it is either the old or the new one.
func (s *Store) Checkpoint(path string, attachment []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("ps: writing checkpoint: %w", err)
		}
	}()
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := s.WriteCheckpoint(f, attachment); err != nil {
		return err
	}
	// The contents must reach the disk before the name does.
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// WriteCheckpoint writes what [Store.Checkpoint] does to w.
func (s *Store) WriteCheckpoint(w io.Writer, attachment []byte) error {
	sum := crc32.New(castagnoli)
	out := bufio.NewWriterSize(w, 1<<16)
	put := func(b []byte) {
		sum.Write(b)
		_, _ = out.Write(b) // keeps its first error for Flush
	}
	le := binary.LittleEndian

	b := append(make([]byte, 0, checkpointHeadLen), checkpointMagic...)
	b = le.AppendUint32(b, checkpointVersion)
	b = le.AppendUint32(b, uint32(s.cfg.Dim))
	b = le.AppendUint32(b, uint32(int32(s.cfg.Exp)))
	b = le.AppendUint32(b, uint32(s.cfg.Optimizer.Method))
	b = le.AppendUint32(b, math.Float32bits(s.cfg.Init.Scale))
	b = le.AppendUint64(b, s.cfg.Init.Seed)
	b = le.AppendUint64(b, s.harvest.instance)
	b = le.AppendUint64(b, s.harvest.number)
	b = le.AppendUint64(b, uint64(len(s.keys)))
	b = le.AppendUint64(b, uint64(len(attachment)))
	put(b)
	put(le.AppendUint32(b[:0], sum.Sum32()))
	put(attachment)

	d := s.cfg.Dim
	for _, r := range s.byKey() {
		pending := byte(s.marks[r>>6] >> (r & 63) & 1)
		b = le.AppendUint64(b[:0], s.keys[r])
		b = append(b, pending)
		b = appendFloats(b, s.weights[r*d:][:d])
		if s.cfg.Optimizer.Method == Adagrad {
			b = appendFloats(b, s.squares[r*d:][:d])
		}
		if pending == 1 {
			for _, n := range s.sums[r*d:][:d] {
				b = le.AppendUint64(b, uint64(n))
			}
		}
		put(b)
	}
	put(le.AppendUint32(b[:0], sum.Sum32()))
	return out.Flush()
}

func appendFloats(b []byte, floats []float32) []byte {
	for _, f := range floats {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

// Restore reads a checkpoint file into a new store and returns it with its
// attachment. What gives stored numbers their meaning must be the same in cfg as
// when the file was written (Dim, Exp, the optimiser's method, Init), else the
// error wraps [ErrMismatch]; learning rate, epsilon and initial accumulator are
// cfg's. Other errors wrap [ErrNotCheckpoint], [ErrVersion], [ErrCorrupt] or
// those of package os.
func Restore(path string, cfg Config) (*Store, []byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("ps: opening checkpoint: %w", err)
	}
	defer f.Close()
	s, attachment, err := ReadCheckpoint(f, cfg)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, attachment, nil
}

// ReadCheckpoint is [Restore] from r, which must end where the checkpoint does.
func ReadCheckpoint(r io.Reader, cfg Config) (*Store, []byte, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, nil, err
	}
	c := &checkpointReader{in: bufio.NewReaderSize(r, 1<<16)}
	rows, attached := c.head(s)
	attachment := c.bytes(attached)
	c.rows(s, rows)
	c.checksum("contents")
	if c.err == nil {
		if _, err := c.in.ReadByte(); err != io.EOF {
			c.fail(fmt.Errorf("%w: bytes follow its end", ErrCorrupt))
		}
	}
	if c.err != nil {
		return nil, nil, c.err
	}
	return s, attachment, nil
}

// checkpointReader reads and checksums; after an error it returns zeros.
type checkpointReader struct {
	in  *bufio.Reader
	sum uint32
	n   int64
	buf []byte
	err error
}

func (c *checkpointReader) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// next returns the next n bytes, which are valid until the next call.
func (c *checkpointReader) next(n int) []byte {
	if cap(c.buf) < n {
		c.buf = make([]byte, n)
	}
	b := c.buf[:n]
	if c.err == nil {
		got, err := io.ReadFull(c.in, b)
		c.n += int64(got)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			c.fail(fmt.Errorf("%w: it ends after %d bytes", ErrCorrupt, c.n))
		case err != nil:
			c.fail(fmt.Errorf("ps: reading checkpoint: %w", err))
		}
		c.sum = crc32.Update(c.sum, castagnoli, b)
	}
	if c.err != nil {
		clear(b)
	}
	return b
}

func (c *checkpointReader) uint32() uint32 { return binary.LittleEndian.Uint32(c.next(4)) }
func (c *checkpointReader) uint64() uint64 { return binary.LittleEndian.Uint64(c.next(8)) }

// checksum compares the checksum so far with the stored one.
func (c *checkpointReader) checksum(of string) {
	want := c.sum
	if got := c.uint32(); got != want {
		c.fail(fmt.Errorf("%w: checksum of its %s is %08x, stored is %08x", ErrCorrupt, of, want, got))
	}
}

// head reads up to the first checksum and compares it with the store's
// configuration.
func (c *checkpointReader) head(s *Store) (rows, attached uint64) {
	if magic := c.next(len(checkpointMagic)); string(magic) != checkpointMagic {
		// A short file that is not even a magic is no truncated checkpoint.
		c.err = ErrNotCheckpoint
	}
	if v := c.uint32(); v != checkpointVersion {
		c.fail(fmt.Errorf("%w: %d, this program reads %d", ErrVersion, v, checkpointVersion))
	}
	dim, exp := int(c.uint32()), int(int32(c.uint32()))
	method, scale := Method(min(c.uint32(), math.MaxUint8)), math.Float32frombits(c.uint32())
	seed := c.uint64()
	s.harvest = harvestID{c.uint64(), c.uint64()}
	rows, attached = c.uint64(), c.uint64()
	// Whatever the fields say counts only if they are undamaged.
	c.checksum("header")
	for _, f := range []struct {
		name       string
		file, want any
	}{
		{"row dimension", dim, s.cfg.Dim},
		{"fixed-point exponent", exp, s.cfg.Exp},
		{"optimiser", method, s.cfg.Optimizer.Method},
		{"initial scale", scale, s.cfg.Init.Scale},
		{"seed", seed, s.cfg.Init.Seed},
	} {
		if f.file != f.want {
			c.fail(fmt.Errorf("%w: its %s is %v, the job's is %v", ErrMismatch, f.name, f.file, f.want))
		}
	}
	return rows, attached
}

// bytes reads n bytes. It trusts n only as far as there are bytes.
func (c *checkpointReader) bytes(n uint64) []byte {
	var b []byte
	for n > 0 && c.err == nil {
		part := min(n, 1<<16)
		b = append(b, c.next(int(part))...)
		n -= part
	}
	return b
}

// rows reads n rows into an empty store.
func (c *checkpointReader) rows(s *Store, n uint64) {
	d := s.cfg.Dim
	last := uint64(0)
	for i := uint64(0); i < n && c.err == nil; i++ {
		key := c.uint64()
		pending := c.next(1)[0]
		if i > 0 && key <= last || pending > 1 {
			c.fail(fmt.Errorf("%w: row %d is malformed", ErrCorrupt, i))
			return
		}
		last = key
		s.index.grow(1)
		r, _ := s.index.place(key, len(s.keys))
		s.insert(key)
		c.floats(s.weights[r*d:])
		if s.cfg.Optimizer.Method == Adagrad {
			c.floats(s.squares[r*d:])
		}
		if pending == 1 {
			for j := range d {
				s.sums[r*d+j] = int64(c.uint64())
			}
			s.marks[r>>6] |= 1 << (r & 63)
			s.touched = append(s.touched, r)
		}
	}
}

func (c *checkpointReader) floats(dst []float32) {
	for i := range dst {
		dst[i] = math.Float32frombits(c.uint32())
	}
}

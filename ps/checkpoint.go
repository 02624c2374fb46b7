package ps

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"slices"

	"github.com/libra-ina/libra/internal/regular"
)

// Errors of [Restore] and [ReadCheckpoint]. They are wrapped with what was
// found.
var (
	// ErrNotCheckpoint means that a file is something else.
	ErrNotCheckpoint = errors.New("ps: not a checkpoint")
	// ErrVersion means that another version of the format wrote a checkpoint.
	ErrVersion = errors.New("ps: unsupported checkpoint version")
	// ErrCorrupt means that a checkpoint is truncated or damaged.
	ErrCorrupt = errors.New("ps: checkpoint is corrupt")
	// ErrMismatch means that a checkpoint belongs to a job with another
	// configuration.
	ErrMismatch = errors.New("ps: checkpoint does not fit the configuration")
)

// A checkpoint is the state as of a commit, little-endian:
//
//	offset  length
//	     0       8  magic "libra-ps"
//	     8       4  version, 2
//	    12       4  Dim, the number of floats in a row
//	    16       4  Exp, the exponent of the fixed-point format, signed
//	    20       4  optimiser: 0 SGD, 1 Adagrad
//	    24       4  Init.Scale, the bits of a float32
//	    28       8  Init.Seed
//	    36       8  instance of the last harvest that is part of the weights
//	    44       8  its number
//	    52       8  R, the number of rows
//	    60       8  A, the length of the attachment
//	    68       4  CRC-32C of bytes 0 to 67
//	    72       A  the attachment
//	  72+A     R×L  the rows
//	72+A+R×L     4  CRC-32C of all bytes before
//
// A row has L = 8 + 4 Dim bytes, under Adagrad 8 + 8 Dim: its key, the bits of its
// weights, and under Adagrad those of its sums of squares. Rows come in the order
// of their first update; no key comes twice. Nothing follows.
const (
	checkpointMagic   = "libra-ps"
	checkpointVersion = 2
	checkpointHeadLen = len(checkpointMagic) + 4 + 4*4 + 5*8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Restore reads a checkpoint file into a new store and returns it with its
// attachment. What gives stored numbers their meaning must be the same in cfg as
// when the file was written (Dim, Exp, the optimiser's method, Init), else the
// error wraps [ErrMismatch]; learning rate, epsilon and initial accumulator are
// cfg's. A checkpoint with more rows than cfg.MaxRows is read whole; the store then
// takes no new ones. Other errors wrap [ErrNotCheckpoint], [ErrVersion],
// [ErrCorrupt] or those of package os.
func Restore(path string, cfg Config) (*Store, []byte, error) {
	f, err := regular.Open(path)
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
	c := &checkpointReader{in: bufio.NewReaderSize(r, turnBytes)}
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
	c.buf = slices.Grow(c.buf[:0], n)[:n]
	b := c.buf
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
	if magic := c.next(len(checkpointMagic)); string(magic) != checkpointMagic && (c.err == nil || errors.Is(c.err, ErrCorrupt)) {
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
	s.committed = s.harvest
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

// bytes reads n bytes. It allocates as they arrive, so that a damaged n
// cannot demand more memory than the input is long.
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
	for i := uint64(0); i < n && c.err == nil; i++ {
		key := c.uint64()
		r, inserted := s.index.place(key, s.rows.n)
		if !inserted {
			c.fail(fmt.Errorf("%w: key %d comes twice", ErrCorrupt, key))
			return
		}
		s.insert(key)
		_, _, weights, squares := s.rows.row(r)
		c.floats(weights)
		c.floats(squares)
	}
}

func (c *checkpointReader) floats(dst []float32) {
	for i := range dst {
		dst[i] = math.Float32frombits(c.uint32())
	}
}

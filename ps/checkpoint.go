// SPDX-License-Identifier: Apache-2.0

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

	"github.com/libra-ina/libra/internal/file"
)

// Errors of [Restore] and [ReadCheckpoint], which wrap them with details.
var (
	// ErrNotCheckpoint means that the file is not a checkpoint.
	ErrNotCheckpoint = errors.New("ps: not a checkpoint")
	// ErrVersion means that the format version of the checkpoint differs.
	ErrVersion = errors.New("ps: unsupported checkpoint version")
	// ErrCorrupt means that a checkpoint is truncated or damaged.
	ErrCorrupt = errors.New("ps: checkpoint is corrupt")
	// ErrMismatch means that a checkpoint belongs to a job with another
	// configuration.
	ErrMismatch = errors.New("ps: checkpoint does not fit the configuration")
)

// A checkpoint is the state as of a commit; docs/checkpoint.md specifies its format.
const (
	checkpointMagic   = "libra-ps"
	checkpointVersion = 2
	checkpointHeadLen = len(checkpointMagic) + 4 + 4*4 + 5*8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Restore reads a checkpoint file into a new store and returns it with its
// attachment. The fields of cfg that define the meaning of stored numbers (Dim, Exp,
// the optimiser's method, Init) must be those of the file, else the error wraps
// [ErrMismatch]; learning rate, epsilon and initial accumulator are cfg's. A
// checkpoint with more rows than cfg.MaxRows is read completely; the store then
// accepts no new rows. Other errors wrap [ErrNotCheckpoint], [ErrVersion],
// [ErrCorrupt] or those of package os.
func Restore(path string, cfg Config) (*Store, []byte, error) {
	f, err := file.Open(path)
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

// CheckpointConfig reads the head of a checkpoint file and returns a configuration
// for [Restore]: the fields that define the meaning of stored numbers, and defaults
// otherwise. It allows reading weights of an unknown job. Errors are those of Restore.
func CheckpointConfig(path string) (Config, error) {
	f, err := file.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("ps: opening checkpoint: %w", err)
	}
	defer f.Close()
	c := &checkpointReader{in: bufio.NewReader(f)}
	h := c.readHead()
	if c.err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, c.err)
	}
	return h.configOf(), nil
}

// ReadCheckpoint is [Restore] from r, which must end with the checkpoint.
func ReadCheckpoint(r io.Reader, cfg Config) (*Store, []byte, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, nil, err
	}
	c := &checkpointReader{in: bufio.NewReaderSize(r, turnBytes)}
	h := c.readHead()
	c.failRead(h.compareConfig(s.cfg))
	s.noteHarvest(h.harvest)
	s.committed = h.harvest
	attachment := c.readBytes(h.attached)
	c.readRows(s, h.rows)
	c.readChecksum("contents")
	if c.err == nil {
		if _, err := c.in.ReadByte(); err != io.EOF {
			c.failRead(fmt.Errorf("%w: bytes follow its end", ErrCorrupt))
		}
	}
	if c.err != nil {
		return nil, nil, c.err
	}
	return s, attachment, nil
}

// ReadAttachment reads a checkpoint's attachment alone. It does not see whether the rest is
// damaged.
func ReadAttachment(r io.Reader) ([]byte, error) {
	c := &checkpointReader{in: bufio.NewReader(r)}
	attachment := c.readBytes(c.readHead().attached)
	return attachment, c.err
}

// checkpointReader reads and checksums; after an error it returns zeros.
type checkpointReader struct {
	in  *bufio.Reader
	sum uint32
	n   int64
	buf []byte
	err error
}

func (c *checkpointReader) failRead(err error) {
	if c.err == nil {
		c.err = err
	}
}

// nextBytes returns the next n bytes, which are valid until the next call.
func (c *checkpointReader) nextBytes(n int) []byte {
	c.buf = slices.Grow(c.buf[:0], n)[:n]
	b := c.buf
	if c.err == nil {
		got, err := io.ReadFull(c.in, b)
		c.n += int64(got)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			c.failRead(fmt.Errorf("%w: it ends after %d bytes", ErrCorrupt, c.n))
		case err != nil:
			c.failRead(fmt.Errorf("ps: reading checkpoint: %w", err))
		}
		c.sum = crc32.Update(c.sum, castagnoli, b)
	}
	if c.err != nil {
		clear(b)
	}
	return b
}

func (c *checkpointReader) readUint32() uint32 { return binary.LittleEndian.Uint32(c.nextBytes(4)) }
func (c *checkpointReader) readUint64() uint64 { return binary.LittleEndian.Uint64(c.nextBytes(8)) }

// readChecksum compares the checksum so far with the stored one.
func (c *checkpointReader) readChecksum(of string) {
	want := c.sum
	if got := c.readUint32(); got != want {
		c.failRead(fmt.Errorf("%w: checksum of its %s is %08x, stored is %08x", ErrCorrupt, of, want, got))
	}
}

// checkpointHead is the part of a checkpoint before its attachment.
type checkpointHead struct {
	dim, exp       int
	method         Method
	init           Init
	harvest        harvestID
	rows, attached uint64
}

// readHead reads up to the first checksum.
func (c *checkpointReader) readHead() (h checkpointHead) {
	if magic := c.nextBytes(len(checkpointMagic)); string(magic) != checkpointMagic &&
		(c.err == nil || errors.Is(c.err, ErrCorrupt)) {
		// A short file without the magic is not a truncated checkpoint.
		c.err = ErrNotCheckpoint
	}
	if v := c.readUint32(); v != checkpointVersion {
		c.failRead(fmt.Errorf("%w: %d, this program reads %d", ErrVersion, v, checkpointVersion))
	}
	h.dim, h.exp = int(c.readUint32()), int(int32(c.readUint32()))
	h.method = Method(min(c.readUint32(), math.MaxUint8))
	h.init = Init{Scale: math.Float32frombits(c.readUint32()), Seed: c.readUint64()}
	h.harvest = harvestID{c.readUint64(), c.readUint64()}
	h.rows, h.attached = c.readUint64(), c.readUint64()
	// The fields are used only if they are undamaged.
	c.readChecksum("header")
	return h
}

func (h checkpointHead) configOf() Config {
	return Config{Dim: h.dim, Exp: h.exp, Optimizer: Optimizer{Method: h.method}, Init: h.init}
}

// compareConfig returns an error that wraps [ErrMismatch] if the configuration of the
// saved store differs.
func (h checkpointHead) compareConfig(cfg Config) error {
	for _, f := range []struct {
		name       string
		file, want any
	}{
		{"row dimension", h.dim, cfg.Dim},
		{"fixed-point exponent", h.exp, cfg.Exp},
		{"optimiser", h.method, cfg.Optimizer.Method},
		{"initial scale", h.init.Scale, cfg.Init.Scale},
		{"seed", h.init.Seed, cfg.Init.Seed},
	} {
		if f.file != f.want {
			return fmt.Errorf("%w: its %s is %v, the job's is %v", ErrMismatch, f.name, f.file, f.want)
		}
	}
	return nil
}

// readBytes reads n bytes. It allocates as they arrive, so that a damaged n
// cannot demand more memory than the input is long.
func (c *checkpointReader) readBytes(n uint64) []byte {
	var b []byte
	for n > 0 && c.err == nil {
		part := min(n, 1<<16)
		b = append(b, c.nextBytes(int(part))...)
		n -= part
	}
	return b
}

// readRows reads n rows into an empty store.
func (c *checkpointReader) readRows(s *Store, n uint64) {
	if s.rows.method == None && n > 0 {
		c.failRead(fmt.Errorf("%w: it contains %d rows, but a store without an optimiser keeps none", ErrCorrupt, n))
		return
	}
	s.rows.reserveRows(int(min(n, 1<<s.rows.shift))) // bounded, since n may be damaged
	length := 8 + 4*s.cfg.Dim
	if s.rows.method == Adagrad {
		length += 4 * s.cfg.Dim
	}
	for i := uint64(0); i < n && c.err == nil; i++ {
		b := c.nextBytes(length)
		if c.err != nil {
			return
		}
		key := binary.LittleEndian.Uint64(b)
		r, inserted := s.index.placeKey(key, s.rows.n)
		if !inserted {
			c.failRead(fmt.Errorf("%w: key %d comes twice", ErrCorrupt, key))
			return
		}
		s.insertRow(key)
		_, _, weights, squares := s.rows.rowArrays(r)
		floats(squares, floats(weights, b[8:]))
	}
}

// floats reads dst from b, and returns the rest.
func floats(dst []float32, b []byte) []byte {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return b[4*len(dst):]
}

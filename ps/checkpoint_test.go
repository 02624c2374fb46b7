// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// sample returns a store with committed and open rows.
func sample(tb testing.TB, cfg Config) *Store {
	tb.Helper()
	s := newStore(tb, cfg)
	d := cfg.Dim
	push := func(keys ...uint64) {
		grads := make([]float32, len(keys)*d)
		for i := range grads {
			grads[i] = float32(i+1) / 8
		}
		if err := s.Push(keys, grads); err != nil {
			tb.Fatal(err)
		}
	}
	harvest := func(number uint64) {
		if _, err := s.ApplyHarvest(Harvest{Instance: 1 << 40, Number: number, Sums: []int64{5}}, []uint64{9}); err != nil {
			tb.Fatal(err)
		}
	}
	push(9, 1<<63, 4)
	harvest(12)
	s.Commit()
	push(4, 77)
	harvest(13)
	return s
}

func encode(tb interface {
	Helper()
	Fatal(...any)
}, s *Store, attachment []byte,
) []byte {
	tb.Helper()
	var buf bytes.Buffer
	if err := s.WriteCheckpoint(&buf, attachment); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

func TestRestoredStoreGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(t)
		a, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		feed := func(stores ...*Store) []part {
			arrivals := parts(t, cfg.Dim)
			for _, p := range arrivals {
				for _, s := range stores {
					if err := s.Push(p.keys, p.grads); err != nil {
						t.Fatal(err)
					}
				}
			}
			return arrivals
		}
		feed(a)
		a.Commit()
		open := feed(a)
		attachment := rapid.SliceOf(rapid.Byte()).Draw(t, "attachment")
		var file bytes.Buffer
		if err := a.WriteCheckpoint(&file, attachment); err != nil {
			t.Fatal(err)
		}
		b, got, err := ReadCheckpoint(&file, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, attachment) {
			t.Fatalf("attachment %x, want %x", got, attachment)
		}
		if n := len(pending(b)); n != 0 {
			t.Fatalf("%d rows of the open step are restored", n)
		}
		if a.Hash() != b.Hash() || a.Len() != b.Len() {
			t.Fatal("the weights differ")
		}
		// A checkpoint is the state as of the last commit: later pushes are repeated.
		for _, p := range open {
			if err := b.Push(p.keys, p.grads); err != nil {
				t.Fatal(err)
			}
		}
		// The optimiser's state affects the following steps.
		for range 2 {
			feed(a, b)
			a.Commit()
			b.Commit()
		}
		if a.Hash() != b.Hash() {
			t.Fatal("the weights differ after more steps")
		}
	})
}

type brokenWriter struct{ room int }

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.room -= len(b); w.room < 0 {
		return 0, os.ErrClosed
	}
	return len(b), nil
}

func TestWriteErrorsAreReported(t *testing.T) {
	s := sample(t, Config{Dim: 1, Exp: DefaultExp})
	if err := s.WriteCheckpoint(&brokenWriter{20}, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v", err)
	}
	// More than the writer's buffer, so that the first write fails early.
	if err := s.WriteCheckpoint(&brokenWriter{20}, make([]byte, 1<<18)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

// TestDamagedCheckpoint cuts a checkpoint at every byte, flips a bit in every byte
// and appends one.
func TestDamagedCheckpoint(t *testing.T) {
	for _, method := range []Method{SGD, Adagrad} {
		cfg := Config{Dim: 2, Exp: DefaultExp, Optimizer: Optimizer{Method: method}}
		file := encode(t, sample(t, cfg), []byte("attachment"))
		for i := range file {
			want := ErrCorrupt
			if i < len(checkpointMagic) {
				want = ErrNotCheckpoint
			}
			if _, _, err := ReadCheckpoint(bytes.NewReader(file[:i]), cfg); !errors.Is(err, want) {
				t.Fatalf("cut at byte %d: %v", i, err)
			}
			damaged := bytes.Clone(file)
			damaged[i] ^= 1 << (i % 8)
			if i >= len(checkpointMagic) && i < len(checkpointMagic)+4 {
				want = ErrVersion
			}
			if _, _, err := ReadCheckpoint(bytes.NewReader(damaged), cfg); !errors.Is(err, want) {
				t.Fatalf("bit flipped in byte %d: %v", i, err)
			}
		}
		if _, _, err := ReadCheckpoint(bytes.NewReader(append(file, 0)), cfg); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a byte appended: %v", err)
		}
	}
}

func TestCheckpointOfAnotherJob(t *testing.T) {
	cfg := Config{Dim: 2, Exp: DefaultExp, Optimizer: Optimizer{Method: Adagrad, LearningRate: 0.1}}
	file := encode(t, sample(t, cfg), nil)
	for name, change := range map[string]func(*Config){
		"dimension": func(c *Config) { c.Dim = 3 },
		"exponent":  func(c *Config) { c.Exp = -40 },
		"optimiser": func(c *Config) { c.Optimizer.Method = SGD },
		"scale":     func(c *Config) { c.Init.Scale = 0.5 },
		"seed":      func(c *Config) { c.Init.Seed = 1 },
	} {
		other := cfg
		change(&other)
		if _, _, err := ReadCheckpoint(bytes.NewReader(file), other); !errors.Is(err, ErrMismatch) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The learning rate may change from run to run.
	cfg.Optimizer.LearningRate = 0.2
	s, _, err := ReadCheckpoint(bytes.NewReader(file), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Config().Optimizer.LearningRate; got != 0.2 {
		t.Errorf("learning rate %g", got)
	}
}

// seal corrects the checksums of a file, so that the fuzzer gets past them.
func seal(file []byte) []byte {
	file = bytes.Clone(file)
	put := func(end int) {
		if end >= 0 && end+4 <= len(file) {
			binary.LittleEndian.PutUint32(file[end:], crc32.Checksum(file[:end], castagnoli))
		}
	}
	put(checkpointHeadLen)
	put(len(file) - 4)
	return file
}

func FuzzReadCheckpoint(f *testing.F) {
	configs := []Config{{Dim: 2}, {Dim: 1, Optimizer: Optimizer{Method: Adagrad}}}
	for _, cfg := range configs {
		file := encode(f, sample(f, cfg), []byte("attachment"))
		f.Add(file)
		f.Add(file[:len(file)-5])
		// A count of rows that no file of this length can hold.
		file[checkpointHeadLen-9] = 0xff
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, cfg := range configs {
			for _, file := range [][]byte{file, seal(file)} {
				s, attachment, err := ReadCheckpoint(bytes.NewReader(file), cfg)
				if err != nil {
					continue
				}
				// An accepted file must be a checkpoint: it is written again byte for byte.
				if again := encode(t, s, attachment); !bytes.Equal(again, file) {
					t.Fatalf("%x was accepted but means %x", file, again)
				}
			}
		}
	})
}

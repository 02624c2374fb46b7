// SPDX-License-Identifier: Apache-2.0

//go:build linux

package clients_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/codec"
)

// TestCodecVectors has the C library code and decode the vectors of package codec, and refuse the
// malformed ones for the same reason.
func TestCodecVectors(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../codec/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Vectors []struct {
			Name            string
			E, K            int
			Values, Decoded []string
			Coded           string
		}
		Malformed []struct {
			Name, Coded, Reason string
			E, K, Count, Offset int
		}
	}
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	var names, lines, want []string
	for _, v := range f.Vectors {
		names = append(names, v.Name+", encode", v.Name+", decode")
		lines = append(lines, fmt.Sprintf("e %d %d %s", v.E, v.K, strings.Join(v.Values, " ")),
			fmt.Sprintf("d %d %d %d %s", v.E, v.K, len(v.Values), v.Coded))
		want = append(want, v.Coded, strings.Join(v.Decoded, " "))
	}
	for _, v := range f.Malformed {
		names = append(names, v.Name)
		lines = append(lines, fmt.Sprintf("d %d %d %d %s", v.E, v.K, v.Count, v.Coded))
		want = append(want, fmt.Sprintf("malformed %d libra_decode: malformed at byte %d, value \\d+: %s; .*", v.Offset, v.Offset, v.Reason))
	}
	if len(lines) < 140 {
		t.Errorf("only %d lines", len(lines))
	}
	for _, v := range []variant{plain, address} {
		for i, got := range codecLines(t, v, lines) {
			if !regexp.MustCompile("^" + want[i] + "$").MatchString(got) {
				t.Errorf("%s: %s: %q, want %q", v.name, names[i], got, want[i])
			}
		}
	}
}

// codecLines returns what the C program prints for lines.
func codecLines(t *testing.T, v variant, lines []string) []string {
	t.Helper()
	cmd := program(t, v, "codec", "lines")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	got := strings.Split(strings.TrimSuffix(run(t, cmd), "\n"), "\n")
	if len(got) != len(lines) {
		t.Fatalf("%d answers to %d lines", len(got), len(lines))
	}
	return got
}

// TestCodecDamage gives random codes, whole, cut, lengthened and changed, to both decoders.
func TestCodecDamage(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 47))
	var lines, want []string
	for len(lines) < 3000 {
		e, k, n := 1+r.IntN(14), []int{0, 0, 20, -126, 126}[r.IntN(5)], r.IntN(260)
		c, err := codec.New(codec.Config{Bound: e, Scale: k})
		if err != nil {
			t.Fatal(err)
		}
		values, share := make([]float32, n), r.Float64()
		for i := range values {
			if r.Float64() < share {
				values[i] = float32(math.Ldexp(r.Float64()-0.5, 2-r.IntN(18)-k))
			}
		}
		coded := c.Append(nil, values)
		switch r.IntN(5) {
		case 0:
			coded = coded[:r.IntN(len(coded)+1)]
		case 1:
			coded = append(coded, make([]byte, 1+r.IntN(400))...)
		case 2, 3:
			for range min(2, len(coded)) {
				coded[r.IntN(len(coded))] ^= 1 << r.IntN(8)
			}
		}
		lines = append(lines, fmt.Sprintf("d %d %d %d %x", e, k, n, coded))
		var m *codec.MalformedError
		if err := c.Decode(values, coded); errors.As(err, &m) {
			want = append(want, fmt.Sprintf("malformed %d libra_decode%s", m.Offset, strings.TrimPrefix(m.Error(), "codec")))
			continue
		}
		var bits []string
		for _, v := range values {
			bits = append(bits, fmt.Sprintf("%08x", math.Float32bits(v)))
		}
		want = append(want, strings.Join(bits, " "))
	}
	for i, got := range codecLines(t, address, lines) {
		if got != want[i] {
			t.Fatalf("%s: %q, package codec says %q", lines[i], got, want[i])
		}
	}
}

var everyPattern = flag.Bool("every-pattern", false, "code all 2^32 float32 values in C and in Go with bounds 6, 8 and 10, not a sample (minutes)")

// TestCodecPatterns compares hashes of what C and Go make of floats of all exponents.
func TestCodecPatterns(t *testing.T) {
	t.Parallel()
	type work struct {
		codec.Config
		step uint64
	}
	works := []work{{codec.Config{Bound: 1, Scale: -126}, 65537}, {codec.Config{Bound: 14, Scale: 126}, 65537}}
	for _, bound := range []int{6, 8, 10} {
		w := work{codec.Config{Bound: bound}, 8191}
		if *everyPattern {
			w.step = 1
		}
		works = append(works, w)
	}
	for _, w := range works {
		t.Run(fmt.Sprintf("%+v", w.Config), func(t *testing.T) {
			t.Parallel()
			c, err := codec.New(w.Config)
			if err != nil {
				t.Fatal(err)
			}
			cmd := within(t, 3*time.Hour, filepath.Join(build(t, plain), "codec"), "patterns",
				strconv.Itoa(w.Bound), strconv.Itoa(w.Scale), strconv.FormatUint(w.step, 10))
			var inC strings.Builder
			cmd.Stdout, cmd.Stderr = &inC, &inC
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			inGo := hashPatterns(t, &c, w.step)
			if err := cmd.Wait(); err != nil || inC.String() != inGo {
				t.Errorf("hashes %s, in Go %s, %v", inC.String(), inGo, err)
			}
		})
	}
}

// hashPatterns returns what the C program prints.
func hashPatterns(t *testing.T, c *codec.Codec, step uint64) string {
	const basis, most = 14695981039346656037, 1024
	codes, decoded := uint64(basis), uint64(basis)
	values, coded, bits := make([]float32, 0, most), []byte(nil), []byte(nil)
	for next := uint64(0); next < 1<<32; {
		for values = values[:0]; len(values) < most && next < 1<<32; next += step {
			values = append(values, math.Float32frombits(uint32(next)))
		}
		coded = c.Append(coded[:0], values)
		if err := c.Decode(values, coded); err != nil {
			t.Error(err)
		}
		codes = hashWords(codes, coded)
		bits = bits[:0]
		for _, v := range values {
			bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(v))
		}
		decoded = hashWords(decoded, bits)
	}
	return fmt.Sprintf("%016x %016x\n", codes, decoded)
}

// hashWords continues FNV-1a, of little-endian words of 64 bits, the last filled up with zeros.
func hashWords(hash uint64, b []byte) uint64 {
	for len(b) > 0 {
		word := b
		if len(b) < 8 {
			word = append(slices.Clone(b), make([]byte, 8-len(b))...)
		}
		hash = (hash ^ binary.LittleEndian.Uint64(word)) * 1099511628211
		b = b[min(8, len(b)):]
	}
	return hash
}

// TestCodecCalls has arguments that are refused, and libra_fit.
func TestCodecCalls(t *testing.T) {
	t.Parallel()
	for _, v := range []variant{plain, address} {
		run(t, program(t, v, "codec", "calls"))
	}
}

// TestCodecRate prints a rate, which no test depends on.
func TestCodecRate(t *testing.T) {
	t.Parallel()
	out := run(t, program(t, plain, "codec", "rate"))
	if !regexp.MustCompile(`^ratio [\d.]+, encode [\d.]+, decode [\d.]+, plain encode [\d.]+, plain decode [\d.]+ GB/s\n$`).MatchString(out) {
		t.Errorf("%q", out)
	}
	t.Log(out)
}

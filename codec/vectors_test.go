// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
)

//go:generate go test -run ^TestVectors -update

var update = flag.Bool("update", false, "rewrite the vectors in testdata")

const vectorsPath = "testdata/vectors.json"

// vectorsFile is for other implementations.
type vectorsFile struct {
	// About says what the fields mean.
	About     string            `json:"about"`
	Vectors   []vector          `json:"vectors"`
	Malformed []malformedVector `json:"malformed"`
}

type vector struct {
	Name    string   `json:"name"`
	E       int      `json:"e"`
	K       int      `json:"k"`
	Values  []string `json:"values"`
	Coded   string   `json:"coded"`
	Decoded []string `json:"decoded"`
}

type malformedVector struct {
	Name   string `json:"name"`
	E      int    `json:"e"`
	K      int    `json:"k"`
	Count  int    `json:"count"`
	Coded  string `json:"coded"`
	Offset int    `json:"offset"`
	Reason string `json:"reason"`
}

const aboutVectors = "e: bound 2^-(e+k); k: scale; values, decoded: bits of float32; coded: bytes; count: of the values to " +
	"decode; offset, reason: the fault, where reasons name what is at the offset"

func hexBits(values []float32) []string {
	var s []string
	for _, v := range values {
		s = append(s, fmt.Sprintf("%08x", math.Float32bits(v)))
	}
	return s
}

func floats(t *testing.T, bits []string) []float32 {
	var values []float32
	for _, s := range bits {
		b, err := strconv.ParseUint(s, 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		values = append(values, math.Float32frombits(uint32(b)))
	}
	return values
}

func fromHex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// around is the float32 nearest to x with its neighbours and negatives.
func around(x float64) []float32 {
	v := float32(x)
	low, high := math.Nextafter32(v, 0), math.Nextafter32(v, math.MaxFloat32)
	return []float32{low, v, high, -low, -v, -high}
}

func currentVectors(t *testing.T) vectorsFile {
	f := vectorsFile{About: aboutVectors}
	add := func(name string, e, k int, values []float32) {
		c := made(t, Config{Bound: e, Scale: k})
		coded := c.Plain().Append(nil, values)
		decoded := make([]float32, len(values))
		if err := c.decodePlain(decoded, 0, coded, 0); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.Vectors = append(f.Vectors, vector{name, e, k, hexBits(values), hex.EncodeToString(coded), hexBits(decoded)})
	}
	infinity, nan := float32(math.Inf(1)), math.Float32frombits(0x7fa00001)
	add("tags", 10, 0, []float32{0.75, -0.01, 0, 2.5, 0.001, 0.0009, 0, -1e-9})
	add("second-burst", 10, 0, []float32{0, 0, 0, 0, 0, 0, 0, 0, -0.125})
	add("zeros-65", 10, 0, make([]float32, 65))
	add("none", 10, 0, nil)
	add("raw", 10, 0, []float32{
		infinity, -infinity, nan, -nan, math.MaxFloat32, -1, 1, math.Float32frombits(0xffffffff),
	})
	add("negative-zero", 10, 0, []float32{float32(math.Copysign(0, -1)), 0.5})
	add("subnormal", 14, 126, []float32{0x1p-149, -0x1p-149, 0x1p-140, 0x1.8p-139, 0x1p-133, -0x1p-132, 0x1.fffffcp-127, 0x1p-126})
	for e := MinBound; e <= MaxBound; e++ {
		scales := []int{0, 20, -20}
		if e == 1 || e == 10 || e == 14 {
			scales = append(scales, MinScale, MaxScale)
		}
		for _, k := range scales {
			var edges []float32
			for _, exponent := range []int{-e, -e / 2, 0} {
				edges = append(edges, around(math.Ldexp(1, exponent-k))...)
			}
			add(fmt.Sprintf("edges-%d-%d", e, k), e, k, append(edges, 0, float32(math.Ldexp(0.7, -k))))
		}
		add(fmt.Sprintf("gradients-%d", e), e, 0, gradients(uint64(e), 100, 0.3, 0.02))
	}
	for _, n := range []int{1, 7, 8, 9, 63, 64, 65, 72, 128, 200} {
		add(fmt.Sprintf("length-%d", n), 8, 4, gradients(uint64(n), n, 0.3, 0.01))
	}
	add("sparse", 10, 0, gradients(7, 700, 0.96, 0.02))
	add("wide", 6, 0, widelySpread(rand.New(rand.NewPCG(3, 3)), 320))

	reject := func(name string, count int, coded string) {
		c := made(t, Config{Bound: 10})
		err := c.decodePlain(make([]float32, count), 0, fromHex(t, coded), 0)
		var m *MalformedError
		if !errors.As(err, &m) {
			t.Fatalf("%s: %v", name, err)
		}
		f.Malformed = append(f.Malformed, malformedVector{name, 10, 0, count, coded, m.Offset, m.Reason})
	}
	reject("empty", 1, "")
	reject("no-tags", 1, "80")
	reject("half-tags", 1, "8080")
	reject("no-code", 1, "808000")
	reject("half-code", 1, "80800012")
	reject("raw-code-short", 1, "80c000"+"3f8000")
	reject("second-burst-missing", 16, "c040000155")
	reject("group-missing", 65, "00")
	reject("second-group-short", 128, "00"+"80800012")
	reject("bytes-for-nothing", 0, "00")
	reject("left-over", 1, "8080002000"+"00")
	reject("group-left-over", 64, "00"+"00")
	reject("burst-of-zeros", 8, "80"+"0000")
	reject("burst-of-zeros-second", 16, "c0"+"400055"+"0000")
	reject("burst-beyond-8", 8, "40"+"400055")
	reject("burst-beyond-65", 65, "00"+"40"+"400055")
	reject("burst-beyond-last-mark", 56, "01"+"400055")
	reject("tag-beyond-1", 1, "80"+"5000"+"5555")
	reject("tag-beyond-63", 63, "01"+"0001"+"55")
	reject("tag-beyond-only", 4, "80"+"0040"+"55")
	return f
}

// marshal writes each vector in a line of its own.
func (f vectorsFile) marshal(t *testing.T) []byte {
	line := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n\"about\": %s,\n\"vectors\": [", line(f.About))
	for i, v := range f.Vectors {
		fmt.Fprint(&b, [2]string{",\n", "\n"}[btoi(i == 0)], line(v))
	}
	fmt.Fprint(&b, "\n],\n\"malformed\": [")
	for i, v := range f.Malformed {
		fmt.Fprint(&b, [2]string{",\n", "\n"}[btoi(i == 0)], line(v))
	}
	fmt.Fprint(&b, "\n]\n}\n")
	return b.Bytes()
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestVectors holds the file against the plain code, and both codes against the file.
func TestVectors(t *testing.T) {
	want := currentVectors(t).marshal(t)
	if *update {
		if err := os.WriteFile(vectorsPath, want, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(vectorsPath)
	if err != nil {
		t.Fatalf("%v; `go generate ./codec` writes the vectors", err)
	}
	if !bytes.Equal(text, want) {
		t.Errorf("%s is not current: if codes are meant to change, run `go generate ./codec`", vectorsPath)
	}
	var f vectorsFile
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Vectors) < 60 || len(f.Malformed) < 20 {
		t.Errorf("only %d vectors and %d malformed ones", len(f.Vectors), len(f.Malformed))
	}
	for _, v := range f.Vectors {
		c, values := made(t, Config{Bound: v.E, Scale: v.K}), floats(t, v.Values)
		if got := hex.EncodeToString(c.Append(nil, values)); got != v.Coded {
			t.Errorf("%s: coded as %s, want %s", v.Name, got, v.Coded)
		}
		decoded := make([]float32, len(values))
		if err := c.Decode(decoded, fromHex(t, v.Coded)); err != nil {
			t.Errorf("%s: %v", v.Name, err)
		}
		if got := hexBits(decoded); !slices.Equal(got, v.Decoded) {
			t.Errorf("%s: decoded as %s, want %s", v.Name, got, v.Decoded)
		}
	}
	for _, v := range f.Malformed {
		err := made(t, Config{Bound: v.E, Scale: v.K}).Decode(make([]float32, v.Count), fromHex(t, v.Coded))
		var m *MalformedError
		if !errors.As(err, &m) || m.Offset != v.Offset || m.Reason != v.Reason {
			t.Errorf("%s: %v, want %q at byte %d", v.Name, err, v.Reason, v.Offset)
		}
	}
}

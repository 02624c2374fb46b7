// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

//go:generate go test -run ^TestGoldenSums -update

var update = flag.Bool("update", false, "rewrite the golden sums in testdata")

const goldenPath = "testdata/sums.json"

// goldenFile is for comparison with other implementations: the tables of the default configuration,
// and sums.
type goldenFile struct {
	// Tables has the SHA-256 digest of each table's little-endian image.
	Tables map[string]string `json:"tables_sha256"`
	Groups []goldenGroup     `json:"groups"`
}

type goldenGroup struct {
	About string `json:"about"`
	// Sums are lines "a b sum" of float32 bits, hexadecimal.
	Sums []string `json:"sums"`
}

func goldenSums() goldenFile {
	f := goldenFile{Tables: map[string]string{}}
	for _, table := range defaultAdder.Tables() {
		digest := sha256.Sum256(table.AppendImage(nil, binary.LittleEndian))
		f.Tables[table.Name] = hex.EncodeToString(digest[:])
	}
	group := func(about string, n int, pair func(i int, rng *rand.Rand) (a, b uint32)) {
		g := goldenGroup{About: about}
		rng := rand.New(rand.NewPCG(uint64(len(f.Groups)), 0))
		for i := range n {
			a, b := pair(i, rng)
			g.Sums = append(g.Sums, fmt.Sprintf("%08x %08x %08x", a, b, defaultAdder.Add(a, b)))
		}
		f.Groups = append(f.Groups, g)
	}
	special := []uint32{
		0, 1, fraction, hidden, hidden + 1, 2 * hidden, 0x3f7fffff, 0x3f800000, 0x3f800001,
		infinity - hidden, infinity - 1, infinity, infinity + 1, notNumber,
		negative, 0x80000001, 0x80800000, 0xbf7fffff, 0xbf800000, 0xff7fffff, negInf, 0xffffffff,
	}
	group("zeros, subnormals, infinities, NaN, extremes: each with each", len(special)*len(special),
		func(i int, _ *rand.Rand) (a, b uint32) {
			return special[i/len(special)], special[i%len(special)]
		})
	near := func(sign uint32, low, high int) func(int, *rand.Rand) (uint32, uint32) {
		return func(_ int, rng *rand.Rand) (a, b uint32) {
			a = uint32(40+rng.IntN(200))<<23 | rng.Uint32()&(fraction|negative)
			b = a&(infinity|negative) ^ sign - uint32(low+rng.IntN(high-low+1))<<23 | rng.Uint32()&fraction
			return a, b
		}
	}
	group("same signs, exponents up to 20 apart", 400, near(0, 0, 20))
	group("opposite signs, exponents 2 to 20 apart", 400, near(negative, 2, 20))
	group("opposite signs, exponents up to 1 apart", 300, near(negative, 0, 1))
	group("cancellation: significands a few units apart", 200, func(_ int, rng *rand.Rand) (a, b uint32) {
		a = uint32(1+rng.IntN(254))<<23 | rng.Uint32()&(fraction|negative)
		return a, a ^ negative + uint32(rng.IntN(33)) - 16
	})
	group("any bits", 300, func(_ int, rng *rand.Rand) (a, b uint32) { return rng.Uint32(), rng.Uint32() })
	return f
}

func TestGoldenSums(t *testing.T) {
	want, err := json.MarshalIndent(goldenSums(), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(goldenPath, want, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(goldenPath)
	if err != nil {
		t.Fatalf("%v; `go generate ./lut` writes the golden sums", err)
	}
	if bytes.Equal(got, want) {
		return
	}
	var old goldenFile
	if err := json.Unmarshal(got, &old); err != nil {
		t.Fatalf("%s: %v", goldenPath, err)
	}
	current := goldenSums()
	for name, digest := range current.Tables {
		if old.Tables[name] != digest {
			t.Errorf("table %s differs from the one whose digest is in %s", name, goldenPath)
		}
	}
	for i, g := range current.Groups {
		for j, sum := range g.Sums {
			if i < len(old.Groups) && j < len(old.Groups[i].Sums) && old.Groups[i].Sums[j] != sum {
				t.Fatalf("%s: %s, want %s", g.About, sum, old.Groups[i].Sums[j])
			}
		}
	}
	t.Errorf("%s is not current: if sums are meant to change, run `go generate ./lut`", goldenPath)
}

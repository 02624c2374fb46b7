// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNewRefusesWidths(t *testing.T) {
	for _, c := range []Config{
		{MantissaBits: 7}, {MantissaBits: 16}, {LogBits: 15}, {LogBits: 24}, {ExpKeyBits: 9}, {ExpKeyBits: 17},
		{MiKeyBits: 7}, {MiKeyBits: 17}, {SubKeyBits: -1}, {SubKeyBits: 17}, {FinalKeyBits: 7}, {FinalKeyBits: 17},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%+v: error %v, want ErrConfig", c, err)
		}
	}
}

// TestEntriesAreNearest compares each entry with float64 arithmetic. 2^-10 of a
// unit is more than the generator's error and float64's together.
func TestEntriesAreNearest(t *testing.T) {
	const slack = 0x1p-10
	a := defaultAdder
	near := func(table string, key int, got uint32, want float64) {
		t.Helper()
		if math.Abs(float64(got)-want) > 0.5+slack {
			t.Fatalf("%s[%d] = %d, want %g", table, key, got, want)
		}
	}
	for e, v := range a.epo {
		if int(int16(v)) != e-127 {
			t.Fatalf("epo[%d] = %d", e, int16(v))
		}
	}
	for key, v := range a.logM {
		m := 1 + float64(key)/2048
		near("logM", key, v, math.Log2(m)*0x1p23)
		near("logMln2", key, uint32(a.logMln2[key]), (math.Log2(m*math.Ln2)+1)*0x1p12)
	}
	for d := 1; d < 4096; d++ {
		near("logDelta", d, uint32(a.logD[d]), (math.Log2(float64(d))+4)*0x1p12)
	}
	for key := range 1 << 16 {
		// The final table's entries stand for the middle of an interval.
		near("final", key, uint32(a.final[key]), (math.Exp2((float64(key)+0.5)/0x1p16)-1)*0x1p16)
		if key == 0 {
			continue
		}
		k := 16 - bits.Len(uint(key))
		u := float64(k) + 2 - (float64(key)+0.5)/math.Ldexp(1, 15-k)
		near("mi", key, uint32(a.sigma[0].table[key]), min(math.Log2(1+math.Exp2(-u))*0x1p16, math.MaxUint16))
		near("sub", key, uint32(a.sigma[1].table[key]), min(-math.Log2(1-math.Exp2(-u-1))*0x1p16, math.MaxUint16))
	}
	if a.sigma[0].table[0] != 0 || a.sigma[1].table[0] != 0 {
		t.Errorf("entries of key 0: %d, %d", a.sigma[0].table[0], a.sigma[1].table[0])
	}
	for key := 2 << 12; key < 16<<12; key++ {
		near("exp", key, uint32(a.exp[key]), math.Exp2(float64(key)/0x1p12-3))
	}
	for m := range a.logMln2 {
		if v := a.exp[a.logD[0]-a.logMln2[m]]; v != 0 {
			t.Fatalf("Δm = 0 adds %d to log2 of m = %d", v, m)
		}
	}
}

// TestExpTableEndsWithItsKeys checks a table of which not all keys occur.
func TestExpTableEndsWithItsKeys(t *testing.T) {
	a, err := New(Config{MantissaBits: 8})
	if err != nil {
		t.Fatal(err)
	}
	end := (23 - 8 + 4) << 11
	if len(a.exp) != 1<<16 || a.exp[end-1] == 0 {
		t.Errorf("%d entries, the last one is %d", len(a.exp), a.exp[end-1])
	}
	for key, v := range a.exp[end:] {
		if v != 0 {
			t.Fatalf("exp[%d] = %d, and no number has that key", end+key, v)
		}
	}
}

// TestLogarithms tries one significand in each 13.
func TestLogarithms(t *testing.T) {
	// The part of Bound for one logarithm.
	const bound = 0x1p-23 + 0x1p-11/math.Ln2*0x1.7p-13 + 0x1p-23/math.Ln2
	worst := 0.0
	for f := uint32(0); f <= fraction; f += 13 {
		got := float64(defaultAdder.log(0x3f800000|f)) / 0x1p23
		worst = max(worst, math.Abs(got-math.Log2(1+float64(f)/0x1p23)))
	}
	if worst > bound {
		t.Errorf("largest error of a logarithm is %g, want at most %g", worst, bound)
	}
	for _, e := range []uint32{1, 127, 128, 254} {
		if got, want := defaultAdder.log(e<<23), (int32(e)-127)<<23; got != want {
			t.Errorf("log2 of 2^%d is %d, want %d", int(e)-127, got, want)
		}
	}
}

func TestLog2Ln2(t *testing.T) {
	if got := math.Log2(math.Ln2) * oneQ; math.Abs(got-log2ln2) > 1 {
		t.Errorf("log2(ln 2) is %g units, the constant %d", got, int64(log2ln2))
	}
}

func TestBudget(t *testing.T) {
	b := defaultAdder.Budget()
	sum := 0
	for _, table := range b.Tables {
		sum += table.Bytes
	}
	if sum != b.Total || b.Total != b.Paper+2*65536 {
		t.Errorf("total %d, sum %d, paper's tables %d", b.Total, sum, b.Paper)
	}
	if b.Paper > PaperBytes {
		t.Errorf("the paper's tables take %d bytes, want at most %d", b.Paper, PaperBytes)
	}
	if PaperBytes != 408.5*1024 {
		t.Errorf("PaperBytes is %d", PaperBytes)
	}
	lines := strings.Split(b.String(), "\n")
	if len(lines) != len(b.Tables)+2 || !strings.Contains(lines[len(b.Tables)], "545280 bytes, of which 414208") {
		t.Errorf("the budget prints as\n%s", b)
	}
	for i, table := range b.Tables {
		if got, want := strings.Fields(lines[i]), []string{table.Name, strconv.Itoa(table.Entries), "entries", strconv.Itoa(table.Bytes), "bytes"}; !slices.Equal(got, want) {
			t.Errorf("line %d has %q, want %q", i, got, want)
		}
	}
}

func TestImageHoldsTables(t *testing.T) {
	for name, order := range map[string]interface {
		binary.ByteOrder
		binary.AppendByteOrder
	}{"little-endian": binary.LittleEndian, "big-endian": binary.BigEndian} {
		t.Run(name, func(t *testing.T) {
			var m struct { // the documented structure
				Epo                 [256]uint16
				LogM                [2048]uint32
				LogMln2             [2048]uint16
				LogDelta            [4096]uint16
				Exp, Mi, Sub, Final [65536]uint16
			}
			image := defaultAdder.Image(order)
			n, err := binary.Decode(image, order, &m)
			if err != nil || n != len(image) {
				t.Fatalf("%d of %d bytes decoded: %v", n, len(image), err)
			}
			read := *defaultAdder
			read.epo, read.logM, read.logMln2, read.logD = m.Epo[:], m.LogM[:], m.LogMln2[:], m.LogDelta[:]
			read.exp, read.final = m.Exp[:], m.Final[:]
			read.sigma = [2]sigma{{table: m.Mi[:]}, {table: m.Sub[:]}}
			for i, table := range read.Tables() {
				if !slices.Equal(table.Values, defaultAdder.Tables()[i].Values) {
					t.Errorf("table %s differs", table.Name)
				}
			}
		})
	}
}

func TestEntriesHoldTables(t *testing.T) {
	adder := mustNew(Config{ExpKeyBits: 10, MiKeyBits: 9, SubKeyBits: 10, FinalKeyBits: 11})
	var out bytes.Buffer
	if err := adder.WriteEntries(&out); err != nil {
		t.Fatal(err)
	}
	values := map[string][]uint32{}
	var norm []Prefix
	for lines := bufio.NewScanner(&out); lines.Scan(); {
		var e Entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if e.Table == "norm" {
			norm = append(norm, Prefix{e.Key, e.Prefix, int(e.Value)})
			continue
		}
		if int(e.Key) != len(values[e.Table]) {
			t.Fatalf("entry %d of table %s has key %d", len(values[e.Table]), e.Table, e.Key)
		}
		values[e.Table] = append(values[e.Table], e.Value)
	}
	for _, table := range adder.Tables() {
		if !slices.Equal(table.Values, values[table.Name]) {
			t.Errorf("table %s differs", table.Name)
		}
		if len(table.Values) != 1<<table.KeyBits {
			t.Errorf("table %s: %d entries, keys of %d bits", table.Name, len(table.Values), table.KeyBits)
		}
		delete(values, table.Name)
	}
	if len(values) > 0 {
		t.Errorf("entries of %d unknown tables", len(values))
	}
	if diff := cmp.Diff(NormTable(), norm); diff != "" {
		t.Errorf("norm: %s", diff)
	}
}

// Changes that a caller makes to its tables do not affect the adder.
func TestTablesAreCopies(t *testing.T) {
	adder, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range adder.Tables() {
		for key := range table.Values {
			table.Values[key]++
		}
	}
	if diff := cmp.Diff(defaultAdder.Tables(), adder.Tables()); diff != "" {
		t.Errorf("tables have changed (-want +got):\n%.1000s", diff)
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestWriteEntriesReportsFailure(t *testing.T) {
	if err := defaultAdder.WriteEntries(brokenWriter{}); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("error %v", err)
	}
}

// TestNormTableMatchesLength looks up every kind of difference like a switch.
func TestNormTableMatchesLength(t *testing.T) {
	const width = 25 // of the difference of two significands of 24 bits, one shifted by one
	for d := uint32(0); d < 1<<width; d += 1 + d/1000 {
		matched := 0
		for _, p := range NormTable() {
			if d>>(width-p.Bits) == p.Key>>(width-p.Bits) {
				matched++
				if p.Length != bits.Len32(d) {
					t.Fatalf("%#x: length %d, want %d", d, p.Length, bits.Len32(d))
				}
			}
		}
		if want := min(d, 1); matched != int(want) {
			t.Fatalf("%#x matches %d prefixes", d, matched)
		}
	}
}

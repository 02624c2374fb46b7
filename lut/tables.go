// SPDX-License-Identifier: Apache-2.0

package lut

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Table is one lookup table. Its key is the index of an entry.
type Table struct {
	// Name is the paper's, if the paper has the table: epo, logM, logMln2,
	// logDelta, exp, mi, final; or sub.
	Name string
	// KeyBits is the width of a key. EntryBytes is the size of an entry, 2 or 4.
	KeyBits, EntryBytes int
	// Values are the 2^KeyBits entries; those of epo are in two's complement.
	Values []uint32
}

// Bytes returns the size of the table's entries.
func (t Table) Bytes() int { return len(t.Values) * t.EntryBytes }

// AppendImage appends the entries to dst in key order: the value of a BPF array
// map, if order is the machine's.
func (t Table) AppendImage(dst []byte, order binary.AppendByteOrder) []byte {
	for _, v := range t.Values {
		if t.EntryBytes == 2 {
			dst = order.AppendUint16(dst, uint16(v))
		} else {
			dst = order.AppendUint32(dst, v)
		}
	}
	return dst
}

// Tables returns copies of the tables, in the order of [Adder.Image].
func (t *Adder) Tables() []Table {
	return []Table{
		short("epo", t.epo),
		{"logM", t.cfg.MantissaBits, 4, slices.Clone(t.logM)},
		short("logMln2", t.logMln2),
		short("logDelta", t.logD),
		short("exp", t.exp),
		short("mi", t.sigma[0].table),
		short("sub", t.sigma[1].table),
		short("final", t.final),
	}
}

func short(name string, entries []uint16) Table {
	t := Table{name, keyBits(len(entries)), 2, make([]uint32, len(entries))}
	for key, v := range entries {
		t.Values[key] = uint32(v)
	}
	return t
}

func keyBits(entries int) (n int) {
	for 1<<n < entries {
		n++
	}
	return n
}

// Image returns all tables concatenated, without gaps. It is the memory of the C
// structure
//
//	struct lut {
//		__u16 epo[256];
//		__u32 log_m[1 << MantissaBits];
//		__u16 log_mln2[1 << MantissaBits];
//		__u16 log_delta[1 << (23 - MantissaBits)];
//		__u16 exp[1 << ExpKeyBits];
//		__u16 mi[1 << MiKeyBits];
//		__u16 sub[1 << SubKeyBits];
//		__u16 final[1 << FinalKeyBits];
//	};
//
// so that a data plane finds all tables with one map lookup. It excludes normTable:
// where variable shifts are cheap, so is counting zeros.
func (t *Adder) Image(order binary.AppendByteOrder) []byte {
	image := make([]byte, 0, t.Budget().Total)
	for _, table := range t.Tables() {
		image = table.AppendImage(image, order)
	}
	return image
}

// Prefix is an entry of normTable: the difference d of two significands, 25 bits
// wide, matches if its leading Bits bits are those of Key.
type Prefix struct {
	Key  uint32
	Bits int
	// Length is the number of significant bits of every d that matches. Shifted
	// left by 24 - Length (or right by one), d is the significand of the sum.
	Length int
}

// NormBits is the width of the key of [NormTable], in bits.
const NormBits = fractionBits + 2

// NormTable returns the prefixes with which a switch normalises the difference of
// two significands. d = 0 matches none.
func NormTable() []Prefix {
	t := make([]Prefix, NormBits)
	for i := range t {
		t[i] = Prefix{Key: 1 << i, Bits: NormBits - i, Length: i + 1}
	}
	return t
}

// Budget is the memory of the tables in bytes. As in the paper, it counts entries,
// not the keys of an exact match.
type Budget struct {
	Tables []TableBytes `json:"tables"`
	// Paper is the size of the tables that the paper has too; the paper needs
	// PaperBytes for them.
	Paper int `json:"paper_bytes"`
	Total int `json:"total_bytes"`
}

// TableBytes is the size of one table.
type TableBytes struct {
	Name    string `json:"name"`
	Entries int    `json:"entries"`
	Bytes   int    `json:"bytes"`
}

// PaperBytes is the size of the paper's seven tables: 408.5 KB (§3.5).
const PaperBytes = 256*2 + 3*4096*2 + 3*65536*2

// Budget returns the memory of the tables. It excludes normTable: 25 prefixes, 2 bytes
// each on a switch that has it as a table.
func (t *Adder) Budget() Budget {
	var b Budget
	for _, table := range t.Tables() {
		b.Tables = append(b.Tables, TableBytes{table.Name, len(table.Values), table.Bytes()})
		b.Total += table.Bytes()
		if table.Name != "sub" {
			b.Paper += table.Bytes()
		}
	}
	return b
}

func (b Budget) String() string {
	s := ""
	for _, t := range b.Tables {
		s += fmt.Sprintf("%-9s %6d entries %7d bytes\n", t.Name, t.Entries, t.Bytes)
	}
	return s + fmt.Sprintf("%-9s %22d bytes, of which %d for the paper's tables (paper: %d)\n", "total", b.Total,
		b.Paper, PaperBytes)
}

// SPDX-License-Identifier: Apache-2.0

package data

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/libra-ina/libra/internal/test/realdata"
)

// write stores data in a file of the test.
func write(tb testing.TB, data string) string {
	tb.Helper()
	name := filepath.Join(tb.TempDir(), "log.libfm")
	if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

func compress(tb testing.TB, data string) string {
	tb.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write([]byte(data)); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.String()
}

func open(tb testing.TB, name string, shard Shard) *File {
	tb.Helper()
	f, err := OpenFile(name, Classification, shard)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// all reads one pass.
func all(tb testing.TB, src Source) []Sample {
	tb.Helper()
	var samples []Sample
	for {
		var s Sample
		err := src.Next(&s)
		if errors.Is(err, io.EOF) {
			return samples
		}
		if err != nil {
			tb.Fatal(err)
		}
		samples = append(samples, s)
	}
}

func TestFileFormats(t *testing.T) {
	want := []Sample{
		{1, []uint64{3, 18446744073709551614}, []float32{1, -0.5}},
		{0, []uint64{7}, []float32{1000}},
		{Label: 1},
	}
	minus := "1 3:1 18446744073709551614:-0.5\n-1\t7:1e3\r\n\n  \n+1"
	zero := " 1.0  3:1.0 18446744073709551614:-.5 \n0 7:1000\n1\n"
	for name, data := range map[string]string{
		"labels -1 and 1":       minus,
		"labels 0 and 1":        zero,
		"gzip":                  compress(t, minus),
		"gzip of several parts": compress(t, minus[:10]) + compress(t, minus[10:]),
		"fields of libffm":      "1 0:3:1 5:18446744073709551614:-0.5\n-1 2:7:1e3\n+1\n",
	} {
		t.Run(name, func(t *testing.T) {
			f := open(t, write(t, data), Shard{})
			for range 2 {
				if diff := cmp.Diff(want, all(t, f)); diff != "" {
					t.Error(diff)
				}
				if f.Rows() != 3 {
					t.Errorf("%d rows, want 3", f.Rows())
				}
				if err := f.Rewind(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestMalformedRows(t *testing.T) {
	for _, test := range []struct{ row, want string }{
		{"2 1:1", `2:1: label "2" is not 1, 0 or -1: to predict numbers and not clicks, choose task regression (objective square of libra glm)`},
		{"yes 1:1", `2:1: label "yes" is not 1, 0 or -1`},
		{"1:1 2:1", `2:1: label "1:1": this is a pair: begin each row with a label, 0 where there is none; rows are in`},
		{"# by a program", `2:1: label "#": this is a comment, which the format does not have: remove it`},
		{"1 1:1 # yes", `2:7: "#": this is a comment, which the format does not have: remove it`},
		{"1 1:1 #5:1", `2:7: "#5:1": this is a comment`},
		{"nan 1:1", `2:1: label "nan" is not 1, 0 or -1; rows are in`}, // no task takes it
		{"-inf 1:1", `2:1: label "-inf" is not 1, 0 or -1; rows are in`},
		{"0 1:1", `2:1: label 0 in a file whose negative label is -1`},
		{"1 12", `2:3: "12" is not an index:value pair`},
		{"1 5:1 :1", `2:7: feature index "" is not an integer from 0 to 2^64-2`},
		{"1 -5:1", `2:3: feature index "-5" is not an integer from 0 to 2^64-2`},
		{"1 qid:1", `2:3: feature index "qid" is not an integer from 0 to 2^64-2`},
		{"1 18446744073709551615:1", `2:3: feature index "18446744073709551615" is not an integer from 0 to 2^64-2`},
		{"1 99999999999999999999:1", `2:3: feature index "99999999999999999999" is not an integer from 0 to 2^64-2`},
		{"1 5:", `2:5: feature value "" is not a finite float32`},
		{"1 5:x", `2:5: feature value "x" is not a finite float32`},
		{"1 5:1 60:1:1", `2:7: "60:1:1" has 2 colons: all pairs of a file are index:value, or all are field:index:value`},
		{"1,0,0.5", `2:1: label "1,0,0.5": this may be CSV; rows are in libfm`},
		{"1 5:nan", `2:5: feature value "nan" is not a finite float32`},
		{"1 5:-inf", `2:5: feature value "-inf" is not a finite float32`},
		{"1 5:1e39", `2:5: feature value "1e39" is not a finite float32`},
		{"\x00\xff", `2:1: label "\x00\xff": this is no text`},
	} {
		name := write(t, "-1 1:1\n"+test.row+"\n1 1:1\n")
		f := open(t, name, Shard{})
		var s Sample
		if err := f.Next(&s); err != nil {
			t.Fatal(err)
		}
		err := f.Next(&s)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || !strings.HasPrefix(err.Error(), name+":"+test.want) {
			t.Errorf("%q: %v, want %s", test.row, err, test.want)
		}
	}
}

// Labels of regression are any numbers, including those of classification.
func TestLabelsOfRegression(t *testing.T) {
	f, err := OpenFile(write(t, "3.5 1:1\n-1e-3 1:1\n0 2:1\n-1 2:1\n1\n"), Regression, Shard{})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got []float32
	for _, s := range all(t, f) {
		got = append(got, s.Label)
	}
	if diff := cmp.Diff([]float32{3.5, -1e-3, 0, -1, 1}, got); diff != "" {
		t.Error(diff)
	}
	for _, row := range []string{"nan 1:1", "inf 1:1", "1e40 1:1", "yes 1:1", "1:1 2:1", "3,5 1:1"} {
		f, err := OpenFile(write(t, "2 1:1\n"+row+"\n"), Regression, Shard{})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, err = Load(f)
		if syntax := (*SyntaxError)(nil); !errors.As(err, &syntax) || syntax.Line != 2 || syntax.Column != 1 || !strings.Contains(syntax.Problem, "label") {
			t.Errorf("%q: %v", row, err)
		}
	}
}

func TestUnreadableFiles(t *testing.T) {
	if _, err := OpenFile(filepath.Join(t.TempDir(), "absent"), Classification, Shard{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	if _, err := OpenFile(write(t, "1 1:1\n"), Classification, Shard{2, 2}); err == nil {
		t.Error("shard 2 of 2 is accepted")
	}
	if _, err := OpenFile(write(t, "\x1f\x8bnot gzip"), Classification, Shard{}); !errors.Is(err, gzip.ErrHeader) {
		t.Errorf("bad gzip header: %v", err)
	}
	for name, data := range map[string]string{"empty": "", "blank": "\n \n", "empty gzip": compress(t, "")} {
		if err := open(t, write(t, data), Shard{}).Next(new(Sample)); !errors.Is(err, ErrEmpty) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cut := compress(t, strings.Repeat("1 1:1\n", 1000))
	f := open(t, write(t, cut[:len(cut)-6]), Shard{})
	var err error
	for err == nil {
		err = f.Next(new(Sample))
	}
	if !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), f.name) {
		t.Errorf("truncated gzip: %v", err)
	}
	if _, err := Load(open(t, write(t, "1 1:1\n1 1:\n"), Shard{})); err == nil {
		t.Error("Load accepts a malformed row")
	}
}

func TestShardsPartitionTheFile(t *testing.T) {
	var rows strings.Builder
	for i := range 10 {
		fmt.Fprintf(&rows, "1 %d:1\n", i)
	}
	name := write(t, rows.String())
	for shard, want := range [][]uint64{{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}} {
		f := open(t, name, Shard{shard, 3})
		var got []uint64
		for _, s := range all(t, f) {
			got = append(got, s.Keys...)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("shard %d: %s", shard, diff)
		}
		if n := f.Shard().Size(f.Rows()); n != len(want) {
			t.Errorf("shard %d has %d rows, want %d", shard, n, len(want))
		}
	}
}

func TestLongLines(t *testing.T) {
	const features = 50_000 // about ten times the reader's buffer
	var row strings.Builder
	for i := range features {
		fmt.Fprintf(&row, " %d:0.%d", i, i+1)
	}
	name := write(t, "1"+row.String()+"\n-1 5:1\n1"+row.String())
	samples := all(t, open(t, name, Shard{}))
	if len(samples) != 3 || len(samples[0].Keys) != features || len(samples[1].Keys) != 1 {
		t.Fatalf("%d samples", len(samples))
	}
	if diff := cmp.Diff(samples[0], samples[2]); diff != "" {
		t.Error(diff)
	}
}

func TestFrappe(t *testing.T) {
	f := open(t, realdata.Path(t, "frappe-train.libfm.gz"), Shard{})
	clicks := 0
	for i, s := range all(t, f) {
		if s.Label > 0 {
			clicks++
		}
		if len(s.Keys) != 10 {
			t.Fatalf("row %d has %d features, want 10", i, len(s.Keys))
		}
	}
	if f.Rows() != 57_722 || clicks != 19_063 {
		t.Errorf("%d rows with %d clicks, want 57722 with 19063", f.Rows(), clicks)
	}
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("1 3:1 4:0.5\n-1 7:1e3\r\n\n+1"), byte(0))
	f.Add([]byte("0 3:nan\n"), byte(1))
	f.Add([]byte(compress(f, "1 1:1\n0 2:2\n")), byte(0))
	f.Fuzz(func(t *testing.T, data []byte, shard byte) {
		src := &File{name: "fuzz", shard: Shard{int(shard % 2), 1 + int(shard%2)}, negative: 1}
		if err := src.reset(bytes.NewReader(data)); err != nil {
			return
		}
		d, err := Load(src)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		if d.Len() != src.shard.Size(src.Rows()) {
			t.Errorf("%d samples of %d rows in shard %v", d.Len(), src.Rows(), src.shard)
		}
		if n := len(d.keys); n > 0 && d.keys[n-1] == BiasKey {
			t.Error("a feature has the bias's key")
		}
		for _, v := range d.values {
			if v-v != 0 {
				t.Errorf("value %g was accepted", v)
			}
		}
	})
}

func BenchmarkFile(b *testing.B) {
	f := open(b, realdata.Path(b, "frappe-train.libfm.gz"), Shard{})
	var s Sample
	n := 0
	for b.Loop() {
		err := f.Next(&s)
		if errors.Is(err, io.EOF) {
			err = f.Rewind()
		}
		if err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "rows/s")
}

// A file of libffm has fields in all pairs, and they are numbers.
func TestMalformedFields(t *testing.T) {
	for row, want := range map[string]string{
		"1 1:5:1 60:1":   `2:9: "60:1" has 1 colons`,
		"1 x:5:1":        `2:3: field "x" is not an integer from 0 on`,
		"1 1:x:1":        `2:5: feature index "x" is not an integer`,
		"1 1:5:x":        `2:7: feature value "x" is not a finite float32`,
		"1 1:5:1:1":      `2:3: "1:5:1:1" has 3 colons`,
		"1 -1:5:1 3:4:1": `2:3: field "-1"`,
	} {
		f := open(t, write(t, "-1 1:1:1\n"+row+"\n"), Shard{})
		var s Sample
		if err := f.Next(&s); err != nil {
			t.Fatal(err)
		}
		if err := f.Next(&s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", row, err, want)
		}
	}
}

// An error of a later pass, in which the file is another one by then, names the line of that pass.
func TestErrorsOfALaterPass(t *testing.T) {
	name := write(t, "1 3:1\n0 4:1\n")
	f := open(t, name, Shard{})
	if d, err := Load(f); err != nil || d.Len() != 2 {
		t.Fatal(d, err)
	}
	if err := errors.Join(os.WriteFile(name, []byte("1 3:1\n0 4:x\n"), 0o600), f.Rewind()); err != nil {
		t.Fatal(err)
	}
	var wrong *SyntaxError
	if _, err := Load(f); !errors.As(err, &wrong) || wrong.Line != 2 || wrong.Column != 5 {
		t.Errorf("the second line of the second pass: %v", err)
	}
}

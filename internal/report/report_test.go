// SPDX-License-Identifier: Apache-2.0

package report

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTable(t *testing.T) {
	var out strings.Builder
	err := Table(&out, []string{"worker", "rows/s", "RTT", "note"}, [][]any{
		{"worker-1", 31000, "12 µs", "3 frames lost"},
		{"w2", 9.5, "100 µs", "x"},
		{"all", "40,500", "", ""},
		{"short"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		" worker    rows/s     RTT  note",
		"─────────────────────────────────────────",
		" worker-1   31000   12 µs  3 frames lost",
		" w2           9.5  100 µs  x",
		" all       40,500",
		" short",
		"",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

type brokenWriter struct{}

var errBroken = errors.New("disk full")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestCell(t *testing.T) {
	if got := Cell("%.2f", 1.234); got != "1.23" {
		t.Errorf("%q", got)
	}
	if got := Cell("%.2f", 0); got != "" {
		t.Errorf("what was not measured is %q", got)
	}
}

func TestTableReportsWriteErrors(t *testing.T) {
	if err := Table(brokenWriter{}, []string{"a"}, nil); !errors.Is(err, errBroken) {
		t.Errorf("got %v, want the writer's error", err)
	}
}

// fakeClock advances on request.
type fakeClock struct{ at time.Time }

func (c *fakeClock) now() time.Time { return c.at }

func TestPlainProgress(t *testing.T) {
	var out bytes.Buffer
	clock := &fakeClock{at: time.Unix(1000, 0)}
	p := newProgress(&out, 20_000, "rows", clock.now)
	clock.at = clock.at.Add(2 * time.Second)
	p.Update(1_999)              // below a tenth
	p.Update(2_000, "loss 0.69") // one tenth
	p.Update(2_500, "loss 0.6")  // the same tenth
	p.Update(1_000, "loss 0.6")  // behind
	p.Update(9_999, "loss 0.5", "hot 67 %")
	clock.at = clock.at.Add(2 * time.Second)
	p.Update(30_000, "loss 0.43") // more than all
	p.Finish()
	p.Finish()
	p.Update(20_000)
	want := " 10 %  2,000 of 20,000 rows, 1,000 rows/s, loss 0.69\n" +
		" 49 %  9,999 of 20,000 rows, 4,999 rows/s, loss 0.5, hot 67 %\n" +
		"100 %  20,000 of 20,000 rows, 5,000 rows/s, loss 0.43\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFinishBeforeTheEnd(t *testing.T) {
	var out bytes.Buffer
	clock := &fakeClock{at: time.Unix(1000, 0)}
	p := newProgress(&out, 3, "epochs", clock.now)
	p.Update(1)
	p.Finish()
	want := " 33 %  1 of 3 epochs\n 33 %  1 of 3 epochs\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A file that is not a terminal gets plain text.
func TestProgressIntoAFile(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := NewProgress(f, 10, "rows")
	var workers sync.WaitGroup
	for i := range int64(11) {
		workers.Go(func() { p.Update(i) })
	}
	workers.Wait()
	p.Finish()
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(string(text), "\r\x1b") || !strings.Contains(string(text), "100 %  10 of 10 rows") {
		t.Errorf("file holds %q", text)
	}
}

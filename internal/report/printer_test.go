// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPrinter(t *testing.T) {
	var out strings.Builder
	p := NewPrinter(&out)
	p.Table("Rates", []string{"test", "rate"}, [][]any{{"echo", 12}})
	p.Note("%swords", strings.Repeat("several ", 20))
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"Rates",
		" test  rate",
		"────────────",
		" echo    12",
		"",
		strings.TrimSpace(strings.Repeat("several ", 15)),
		strings.Repeat("several ", 5) + "words",
		"",
		"",
	}, "\n")
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > textWidth || strings.HasSuffix(line, " \n") {
			t.Errorf("line of %d characters: %q", n, line)
		}
	}
}

// failingWriter fails from the n-th write on.
type failingWriter struct{ left, writes int }

func (w *failingWriter) Write(b []byte) (int, error) {
	w.writes++
	if w.left--; w.left < 0 {
		return 0, errBroken
	}
	return len(b), nil
}

func TestPrinterKeepsTheFirstError(t *testing.T) {
	for good := range 3 {
		w := &failingWriter{left: good}
		p := NewPrinter(w)
		p.Table("title", []string{"a"}, [][]any{{1}})
		p.Note("text")
		if err := p.Err(); !errors.Is(err, errBroken) {
			t.Errorf("after %d writes: %v", good, err)
		}
		if w.writes != good+1 {
			t.Errorf("%d writes, the last of which failed; then %d more", good+1, w.writes-good-1)
		}
	}
}

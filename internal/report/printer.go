// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// textWidth is the width of a Printer's paragraphs, in characters.
const textWidth = 120

// Printer writes tables and paragraphs. It keeps the first error and writes
// nothing after it.
type Printer struct {
	w   io.Writer
	err error
}

// NewPrinter returns a printer to w.
func NewPrinter(w io.Writer) *Printer { return &Printer{w: w} }

// Err returns the first error.
func (p *Printer) Err() error { return p.err }

// Line writes a line as it is.
func (p *Printer) Line(s string) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, s)
	}
}

// Table writes a title, a [Table] and an empty line.
func (p *Printer) Table(title string, header []string, rows [][]any) {
	p.Line(title)
	if p.err == nil {
		p.err = Table(p.w, header, rows)
	}
	p.Line("")
}

// Note writes a paragraph and an empty line.
func (p *Printer) Note(format string, args ...any) {
	for line := range strings.Lines(text.WrapSoft(fmt.Sprintf(format, args...), textWidth) + "\n\n") {
		p.Line(strings.TrimRight(line, " \n")) // the wrapper pads lines with spaces
	}
}

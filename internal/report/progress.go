// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// redraw is the shortest time between two updates of the status line: often enough to look smooth,
// at negligible cost.
const redraw = 100 * time.Millisecond

// Progress shows how much of a known amount of work is done. Its methods may be
// called from several goroutines.
type Progress struct {
	w     io.Writer
	total int64
	unit  string
	bar   *progressbar.ProgressBar // nil: w is not a terminal
	now   func() time.Time
	start time.Time

	mu       sync.Mutex
	done     int64
	fields   string
	tenths   int64 // written so far, without a terminal
	finished bool
}

// NewProgress starts showing progress on w. total is the amount of work, above zero; unit is its
// plural noun, such as "rows".
func NewProgress(w io.Writer, total int64, unit string) *Progress {
	p := newProgress(w, total, unit, time.Now)
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.bar = progressbar.NewOptions64(p.total,
			progressbar.OptionSetWriter(f),
			progressbar.OptionUseANSICodes(true),
			progressbar.OptionFullWidth(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString(unit),
			progressbar.OptionShowDescriptionAtLineEnd(),
			progressbar.OptionThrottle(redraw),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

func newProgress(w io.Writer, total int64, unit string, now func() time.Time) *Progress {
	return &Progress{w: w, total: max(total, 1), unit: unit, now: now, start: now()}
}

// Update shows that done units of the total are done, and a note such as "loss 0.43". Updates may
// come from several sources: one that is behind an earlier one does not move the progress back.
func (p *Progress) Update(done int64, fields ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return
	}
	p.done = min(max(p.done, done), p.total)
	p.fields = strings.Join(fields, ", ")
	if p.bar != nil {
		// Describe would draw at once, with the old count, and the new one would have to wait for
		// the next redraw.
		progressbar.OptionSetDescription(p.fields)(p.bar)
		// An error means that the terminal was closed, which must not stop the work.
		_ = p.bar.Set64(p.done)
		return
	}
	if tenths := p.done * 10 / p.total; tenths > p.tenths && p.done < p.total {
		p.tenths = tenths
		p.writeLine()
	}
}

// Finish replaces the status line by a last line with the amount reached, the total or less, and
// shows nothing after that.
func (p *Progress) Finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return
	}
	p.finished = true
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
	}
	p.writeLine()
}

// writeLine writes the state as a line of plain text.
func (p *Progress) writeLine() {
	line := fmt.Sprintf("%3d %%  %s of %s %s",
		p.done*100/p.total, humanize.Comma(p.done), humanize.Comma(p.total), p.unit)
	if seconds := p.now().Sub(p.start).Seconds(); seconds > 0 {
		line += fmt.Sprintf(", %s %s/s", humanize.Comma(int64(float64(p.done)/seconds)), p.unit)
	}
	if p.fields != "" {
		line += ", " + p.fields
	}
	_, _ = fmt.Fprintln(p.w, line)
}

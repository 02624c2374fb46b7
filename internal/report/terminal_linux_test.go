// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal returns both sides of a pseudo-terminal of 100 columns.
func openTerminal(t *testing.T) (control, terminal *os.File) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no /dev/ptmx: this system has no pseudo-terminals")
	}
	if err != nil {
		t.Fatal(err)
	}
	fd := int(control.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 25, Col: 100}); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = terminal.Close()
		_ = control.Close()
	})
	return control, terminal
}

// screen interprets the output to a terminal and returns the visible lines, without trailing
// blanks.
func screen(written string) []string {
	var lines []string
	for _, line := range strings.Split(strings.ReplaceAll(written, "\r\n", "\n"), "\n") {
		var cells []rune
		column := 0
		for text := []rune(line); len(text) > 0; {
			switch {
			case strings.HasPrefix(string(text), "\x1b[2K"):
				cells, text = nil, text[4:]
				for range column {
					cells = append(cells, ' ')
				}
				continue
			case strings.HasPrefix(string(text), "\x1b[K"):
				cells, text = cells[:min(column, len(cells))], text[3:]
				continue
			case text[0] == '\r':
				column = 0
			case column < len(cells):
				cells[column] = text[0]
				column++
			default:
				cells = append(cells, text[0])
				column++
			}
			text = text[1:]
		}
		lines = append(lines, strings.TrimRight(string(cells), " "))
	}
	return lines
}

func TestProgressOnATerminal(t *testing.T) {
	control, terminal := openTerminal(t)
	p := NewProgress(terminal, 1000, "rows")
	p.Update(430, "loss 0.43")
	p.Update(1000, "loss 0.39")
	p.Finish()
	if err := terminal.Close(); err != nil {
		t.Fatal(err)
	}
	// Reading ends with EIO, because the other side is closed.
	written, _ := io.ReadAll(control)

	if text := string(written); !strings.Contains(text, "43%") || !strings.Contains(text, "loss 0.43") {
		t.Errorf("written: %q, want the status", text)
	}
	got := screen(string(written))
	if len(got) != 2 || got[1] != "" || !strings.HasPrefix(got[0], "100 %  1,000 of 1,000 rows") || !strings.HasSuffix(got[0], "loss 0.39") {
		t.Errorf("the screen shows %q, want the last line in the place of the status", got)
	}
}

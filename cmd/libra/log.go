// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
)

// setUpLog makes the default logger write plain lines to standard error.
func setUpLog(verbose bool) {
	slog.SetDefault(slog.New(newLog(os.Stderr, verbose, toJournal(os.Stderr))))
}

// newLog returns what writes the lines of the log. In systemd's journal, which has the time of each
// line, they have a priority instead (sd-daemon(3)).
func newLog(out io.Writer, verbose, journal bool) slog.Handler {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if verbose {
		o.Level = slog.LevelDebug
	}
	if journal {
		o.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		}
		out = &journalWriter{out: out}
	}
	return slog.NewTextHandler(out, o)
}

// toJournal reports whether a file is read by systemd's journal. The variable is inherited by all
// children of a service, some of which write to a file or a terminal.
func toJournal(f *os.File) bool {
	if os.Getenv("JOURNAL_STREAM") == "" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&(fs.ModeSocket|fs.ModeNamedPipe) != 0
}

// journalWriter puts the priority that its level has for syslog before each line.
type journalWriter struct {
	mu  sync.Mutex
	out io.Writer
	buf []byte
}

func (w *journalWriter) Write(line []byte) (int, error) {
	priority := "<6>"
	for level, p := range map[slog.Level]string{slog.LevelDebug: "<7>", slog.LevelWarn: "<4>", slog.LevelError: "<3>"} {
		if bytes.HasPrefix(line, []byte("level="+level.String()+" ")) {
			priority = p
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(append(w.buf[:0], priority...), line...)
	if _, err := w.out.Write(w.buf); err != nil {
		return 0, err
	}
	return len(line), nil
}

// lastWords gives what a command says at its end the priority of an error, line by line, unless it
// was only interrupted.
type lastWords struct{ journal io.Writer }

const interruptedText = "libra: interrupted\n"

func (w lastWords) Write(text []byte) (int, error) {
	priority := "<3>"
	if string(text) == interruptedText {
		priority = "<6>"
	}
	var all []byte
	for line := range bytes.Lines(text) {
		all = append(append(all, priority...), line...)
	}
	if _, err := w.journal.Write(all); err != nil {
		return 0, err
	}
	return len(text), nil
}

// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// maxLine limits the memory of a child's unterminated line; a longer one is passed on in pieces.
const maxLine = 64 << 10

// lineWriter cuts a stream into lines and passes each on without its newline.
type lineWriter struct {
	pending []byte
	emit    func(line []byte)
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			w.pending = append(w.pending, p...)
			if len(w.pending) >= maxLine {
				w.flush()
			}
			break
		}
		w.pending = append(w.pending, p[:end]...)
		p = p[end+1:]
		w.emit(bytes.TrimSuffix(w.pending, []byte{'\r'}))
		w.pending = w.pending[:0]
	}
	return n, nil
}

// flush passes on an unterminated last line.
func (w *lineWriter) flush() {
	if len(w.pending) > 0 {
		w.emit(w.pending)
		w.pending = w.pending[:0]
	}
}

// tail keeps the last n lines.
type tail struct {
	mu    sync.Mutex
	n     int
	lines []string
}

func (t *tail) add(line []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == t.n {
		copy(t.lines, t.lines[1:])
		t.lines = t.lines[:t.n-1]
	}
	t.lines = append(t.lines, string(line))
}

func (t *tail) snapshot() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.lines...)
}

// lockedWriter keeps lines of several children intact.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *lockedWriter) writeLine(prefix string, line []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	// A closed terminal must not stop the cluster, so an error here is dropped; the tail still has
	// the line.
	_, _ = fmt.Fprintf(w.w, "%s%s\n", prefix, line)
}

// AnnounceReady writes the line that tells the supervising process that the
// caller is ready, with a value for it. w is the caller's standard output.
func AnnounceReady(w io.Writer, value any) error {
	if err := json.NewEncoder(w).Encode(map[string]any{"ready": value}); err != nil {
		return fmt.Errorf("proc: write the ready line: %w", err)
	}
	return nil
}

// parseReady returns the value of a ready line.
func parseReady(line []byte) (json.RawMessage, bool) {
	if len(line) == 0 || line[0] != '{' {
		return nil, false
	}
	var msg map[string]json.RawMessage
	if json.Unmarshal(line, &msg) != nil {
		return nil, false
	}
	value, ok := msg["ready"]
	return value, ok
}

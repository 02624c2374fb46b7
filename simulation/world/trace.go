// SPDX-License-Identifier: Apache-2.0

package world

import (
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Trace writes to the life's record and its digest.
func (w *World) Trace(format string, args ...any) {
	w.tracing.Lock()
	defer w.tracing.Unlock()
	w.writeLine(fmt.Appendf(w.line[:0], format, args...))
}

// Tell traces an event with its time.
func (w *World) Tell(format string, args ...any) {
	w.Trace("%9d "+format, append([]any{w.Elapsed().Microseconds()}, args...)...)
}

// Digest returns the digest of the trace so far.
func (w *World) Digest() uint64 { return w.digest.Sum64() }

// LogOf returns a writer that puts the log of a process into the trace, which is not part of its
// digest. It is nil if nothing reads the trace.
func (w *World) LogOf(process string) io.Writer {
	if w.options.Trace == nil {
		return nil
	}
	return logWriter{w, process}
}

type logWriter struct {
	w       *World
	process string
}

func (l logWriter) Write(b []byte) (int, error) {
	l.w.tracing.Lock()
	defer l.w.tracing.Unlock()
	_, err := l.w.options.Trace.Write(append([]byte("          "+l.process+": "), b...))
	return len(b), err
}

// traceTurn traces the actor of a turn. It and traceFrame are called so often that formatting would
// take a tenth of a life.
func (w *World) traceTurn(a *Actor) {
	w.tracing.Lock()
	defer w.tracing.Unlock()
	b := append(w.stampLine(), a.name...)
	b = append(append(b, ' '), a.where...)
	w.writeLine(append(b, '\n'))
}

// traceFrame traces the fate of a frame.
func (w *World) traceFrame(what string, from, to *Host, payload []byte) {
	w.tracing.Lock()
	defer w.tracing.Unlock()
	b := append(w.stampLine(), from.name...)
	b = append(append(b, " > "...), to.name...)
	b = append(append(append(b, ' '), what...), ' ')
	b = hex.AppendEncode(b, payload[:min(12, len(payload))])
	w.writeLine(append(b, '\n'))
}

// stampLine begins a line with the microseconds of the life, in nine columns.
func (w *World) stampLine() []byte {
	var digits [20]byte
	n := strconv.AppendInt(digits[:0], time.Since(w.began).Microseconds(), 10)
	w.line = append(w.line[:0], "         "[min(9, len(n)):]...)
	return append(append(w.line, n...), ' ')
}

func (w *World) writeLine(line []byte) {
	w.line = line
	_, _ = w.digest.Write(line)
	if w.options.Trace != nil {
		_, _ = w.options.Trace.Write(line)
	}
}

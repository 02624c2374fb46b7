// SPDX-License-Identifier: Apache-2.0

// Package testlog records what a program logs, for tests.
package testlog

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// limit bounds the wait for a line.
const limit = time.Minute

// A Log records what is written to it. Its zero value is empty. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// String returns the record.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger returns a logger of all levels that writes to the record.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Await waits until the record contains all words, and forgets it then.
func (l *Log) Await(t *testing.T, words ...string) {
	t.Helper()
	for end := time.Now().Add(limit); !l.forget(words); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the log does not contain %q: %s", words, l)
		}
	}
}

// forget empties a record that contains all words, or returns false.
func (l *Log) forget(words []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range words {
		if !strings.Contains(l.text.String(), w) {
			return false
		}
	}
	l.text.Reset()
	return true
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Some records of a flood are dropped, which the next record reports. Later ones are passed on
// again.
func TestLogIsLimited(t *testing.T) {
	var out bytes.Buffer
	log, queue := limitLog(slog.New(slog.NewTextHandler(&out, nil)))
	log = log.With("job", "clicks").WithGroup("now")
	start := time.Now()
	write := func(after time.Duration) {
		r := slog.NewRecord(start.Add(after), slog.LevelInfo, "client came", 0)
		if err := log.Handler().Handle(context.Background(), r); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		write(0)
	}
	queue.waitWritten()
	if n := strings.Count(out.String(), "\n"); n != logBurst {
		t.Errorf("%d records of 1000 at once are there, want %d", n, logBurst)
	}
	out.Reset()
	write(logPause)
	write(logPause)
	queue.waitWritten()
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `job=clicks "now.records left out"=800`) {
		t.Errorf("a moment later there are\n%s", got)
	}
	out.Reset()
	for range 1000 {
		write(time.Hour)
	}
	queue.waitWritten()
	if n := strings.Count(out.String(), "\n"); n != logBurst {
		t.Errorf("%d records an hour later, want %d", n, logBurst)
	}
	if got := out.String(); strings.Count(got, "records left out") != 1 || !strings.Contains(got, `"now.records left out"=1`) {
		t.Errorf("the record that was left out is not told once:\n%s", got)
	}
}

// stoppedHandler signals that it has a record, and waits.
type stoppedHandler struct {
	slog.Handler
	entered, open chan struct{}
}

func (h stoppedHandler) Handle(context.Context, slog.Record) error {
	h.entered <- struct{}{}
	<-h.open
	return nil
}

// While a handler is busy, only a limited number of records wait for it.
func TestRecordsWaitForTheHandler(t *testing.T) {
	h := stoppedHandler{slog.DiscardHandler, make(chan struct{}, 3*logBurst), make(chan struct{})}
	log, queue := limitLog(slog.New(h))
	now := time.Now()
	write := func() {
		now = now.Add(logPause) // never more at once than there is room for
		if err := log.Handler().Handle(context.Background(), slog.NewRecord(now, slog.LevelInfo, "client came", 0)); err != nil {
			t.Fatal(err)
		}
	}
	write()
	<-h.entered
	for range 2 * logBurst {
		write()
	}
	close(h.open)
	queue.waitWritten()
	if n := len(h.entered); n != logBurst {
		t.Errorf("%d records have waited, want %d", n, logBurst)
	}
}

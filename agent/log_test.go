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

// Of a flood of records some are left out, which the next one tells. Later there is room again.
func TestLogIsLimited(t *testing.T) {
	var out bytes.Buffer
	log, room := limitLog(slog.New(slog.NewTextHandler(&out, nil)))
	log = log.With("job", "clicks")
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
	room.wait()
	if n := strings.Count(out.String(), "\n"); n != logBurst {
		t.Errorf("%d records of 1000 at once are there, want %d", n, logBurst)
	}
	out.Reset()
	write(logPause)
	write(logPause)
	room.wait()
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `job=clicks "records left out"=800`) {
		t.Errorf("a moment later there are\n%s", got)
	}
	out.Reset()
	for range 1000 {
		write(time.Hour)
	}
	room.wait()
	if n := strings.Count(out.String(), "\n"); n != logBurst {
		t.Errorf("%d records an hour later, want %d", n, logBurst)
	}
}

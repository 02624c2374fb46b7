// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// What clients cause is logged in full up to logBurst records, and then one each logPause: those that come and go, or
// are refused, again and again fill no disk.
const (
	logBurst = 200
	logPause = 100 * time.Millisecond
)

// limited passes records on while there is room. The first one that passes after others did not tells their number.
type limited struct {
	slog.Handler
	room *room
}

// room is that of a handler and of all that were made from it.
type room struct {
	mu      sync.Mutex
	full    time.Time // when all of it is there again
	dropped int
}

func limitLog(log *slog.Logger) *slog.Logger {
	return slog.New(limited{Handler: log.Handler(), room: new(room)})
}

// take takes room for a record of that time. It returns how many found none before.
func (r *room) take(now time.Time) (dropped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.full
	if full.Before(now) {
		full = now
	}
	if full.Sub(now) > (logBurst-1)*logPause {
		r.dropped++
		return 0, false
	}
	r.full = full.Add(logPause)
	dropped, r.dropped = r.dropped, 0
	return dropped, true
}

func (l limited) Handle(ctx context.Context, r slog.Record) error {
	dropped, ok := l.room.take(r.Time)
	if !ok {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("records left out", dropped))
	}
	return l.Handler.Handle(ctx, r)
}

func (l limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limited{Handler: l.Handler.WithAttrs(attrs), room: l.room}
}

func (l limited) WithGroup(name string) slog.Handler {
	return limited{Handler: l.Handler.WithGroup(name), room: l.room}
}

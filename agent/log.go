// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Messages about clients are logged in full up to logBurst records, then one each logPause, so that
// clients that come and go cannot fill the disk.
const (
	logBurst = 200
	logPause = 100 * time.Millisecond
)

// limited passes records on at a limited rate, in its own goroutine, so that a slow handler delays no
// job. The first record after dropped ones reports their number.
type limited struct {
	slog.Handler
	room *room
}

// room is the rate limit of a handler and of all handlers derived from it.
type room struct {
	mu      sync.Mutex
	full    time.Time // when the whole burst is available again
	dropped int
	queue   []waitingRecord
	writing bool // a goroutine passes the queue on
	writers sync.WaitGroup
}

// waitingRecord is a record in the queue, with its handler.
type waitingRecord struct {
	to slog.Handler
	slog.Record
}

func limitLog(log *slog.Logger) (*slog.Logger, *room) {
	r := new(room)
	return slog.New(limited{Handler: log.Handler(), room: r}), r
}

// take reserves room for a record of that time. It returns how many were dropped before.
func (r *room) take(now time.Time) (dropped int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	full := r.full
	if full.Before(now) {
		full = now
	}
	if full.Sub(now) > (logBurst-1)*logPause || len(r.queue) >= logBurst {
		r.dropped++
		return 0, false
	}
	r.full = full.Add(logPause)
	dropped, r.dropped = r.dropped, 0
	return dropped, true
}

func (l limited) Handle(_ context.Context, r slog.Record) error {
	dropped, ok := l.room.take(r.Time)
	if !ok {
		return nil
	}
	r = r.Clone() // it outlives the call
	if dropped > 0 {
		r.AddAttrs(slog.Int("records left out", dropped))
	}
	l.room.pass(waitingRecord{l.Handler, r})
	return nil
}

// pass queues a record.
func (r *room) pass(w waitingRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, w)
	if !r.writing {
		r.writing = true
		r.writers.Go(r.write)
	}
}

// write writes the queue until it is empty. Errors of a handler are ignored.
func (r *room) write() {
	for {
		r.mu.Lock()
		all := r.queue
		r.queue = nil
		r.writing = len(all) > 0
		r.mu.Unlock()
		if len(all) == 0 {
			return
		}
		for _, w := range all {
			_ = w.to.Handle(context.Background(), w.Record)
		}
	}
}

func (r *room) wait() { r.writers.Wait() }

func (l limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limited{Handler: l.Handler.WithAttrs(attrs), room: l.room}
}

func (l limited) WithGroup(name string) slog.Handler {
	return limited{Handler: l.Handler.WithGroup(name), room: l.room}
}

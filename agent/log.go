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

// limited passes records on while there is room, in a goroutine of its own: a handler that takes its time holds no job up. The
// first record that passes after others did not tells their number.
type limited struct {
	slog.Handler
	room *room
}

// room is that of a handler and of all that were made from it.
type room struct {
	mu      sync.Mutex
	full    time.Time // when all of it is there again
	dropped int
	queue   []waitingRecord
	writing bool // a goroutine passes the queue on
	writers sync.WaitGroup
}

// waitingRecord is on its way to a handler.
type waitingRecord struct {
	to slog.Handler
	slog.Record
}

func limitLog(log *slog.Logger) (*slog.Logger, *room) {
	r := new(room)
	return slog.New(limited{Handler: log.Handler(), room: r}), r
}

// take takes room for a record of that time. It returns how many found none before.
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

// pass has a record written after those before it.
func (r *room) pass(w waitingRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, w)
	if !r.writing {
		r.writing = true
		r.writers.Go(r.write)
	}
}

// write passes records on until there are none. An error of a handler has no one to go to.
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

// wait returns when all records are written.
func (r *room) wait() { r.writers.Wait() }

func (l limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limited{Handler: l.Handler.WithAttrs(attrs), room: l.room}
}

func (l limited) WithGroup(name string) slog.Handler {
	return limited{Handler: l.Handler.WithGroup(name), room: l.room}
}

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

// limitedHandler passes records on at a limited rate, in its own goroutine, so that a slow handler
// delays no job. The first record after dropped ones reports their number.
type limitedHandler struct {
	slog.Handler
	queue *logQueue
}

// logQueue is the rate limit of a handler and of all handlers derived from it.
type logQueue struct {
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

func limitLog(log *slog.Logger) (*slog.Logger, *logQueue) {
	r := new(logQueue)
	return slog.New(limitedHandler{Handler: log.Handler(), queue: r}), r
}

// reserveRecord reserves a place in the queue for a record of that time. It returns how many were
// dropped before.
func (r *logQueue) reserveRecord(now time.Time) (dropped int, ok bool) {
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

func (l limitedHandler) Handle(_ context.Context, r slog.Record) error {
	dropped, ok := l.queue.reserveRecord(r.Time)
	if !ok {
		return nil
	}
	r = r.Clone() // it outlives the call
	if dropped > 0 {
		r.AddAttrs(slog.Int("records left out", dropped))
	}
	l.queue.queueRecord(waitingRecord{l.Handler, r})
	return nil
}

// queueRecord queues a record.
func (r *logQueue) queueRecord(w waitingRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, w)
	if !r.writing {
		r.writing = true
		r.writers.Go(r.writeQueue)
	}
}

// writeQueue writes the queue until it is empty. Errors of a handler are ignored.
func (r *logQueue) writeQueue() {
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

func (r *logQueue) waitWritten() { r.writers.Wait() }

func (l limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limitedHandler{Handler: l.Handler.WithAttrs(attrs), queue: l.queue}
}

func (l limitedHandler) WithGroup(name string) slog.Handler {
	return limitedHandler{Handler: l.Handler.WithGroup(name), queue: l.queue}
}

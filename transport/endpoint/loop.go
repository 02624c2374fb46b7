// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/link"
)

// ErrClosed means that an endpoint was closed. It is a net.ErrClosed.
var ErrClosed = fmt.Errorf("transport: endpoint is closed: %w", net.ErrClosed)

// DefaultLook is the longest time for which an endpoint polls for frames before it sleeps, 400 µs.
const DefaultLook = sys.DefaultLook

const (
	// Batch is how many payloads an endpoint receives or sends at a time.
	Batch = 64

	// SendRetry bounds a sleep while the link has no room for frames.
	SendRetry = time.Millisecond

	// Backlog is how many posted functions may wait for the goroutine; further callers wait
	// themselves.
	Backlog = 64
)

// Config describes a [Loop].
type Config struct {
	// Link carries the frames. The loop closes it when it ends.
	Link link.Link
	// Look is the longest time to poll before sleeping. 0 means [DefaultLook], a negative value no
	// polling.
	Look time.Duration
	// Gate belongs to a simulation and is nil otherwise. A goroutine passes it before it calls the
	// endpoint, so that the simulation decides the order. With a gate the loop does not poll: in a
	// simulation, time stands still while code runs.
	Gate func()
}

// Loop is the goroutine of an endpoint with its queue of calls. Do, Close, Done and Err are for the
// endpoint's users, who may call them from any goroutine; so may its owner call Post and Closing.
// The other methods belong to the goroutine.
type Loop struct {
	link    link.Link
	gate    func()
	idle    sys.Look
	calls   chan func() // run by the goroutine, in order
	closing atomic.Bool
	load    load
	dead    chan struct{} // closed when the goroutine has ended
	err     error         // why it ended; written before dead is closed
}

// Init prepares a loop. Call it once, before all other methods.
func (l *Loop) Init(cfg Config) {
	l.link, l.gate = cfg.Link, cfg.Gate
	if l.gate == nil {
		l.idle.Limit = max(0, cmp.Or(cfg.Look, DefaultLook))
	}
	l.calls = make(chan func(), Backlog)
	l.dead = make(chan struct{})
	l.load.initLoad()
}

// Start runs the goroutine: body until it returns, then finish with the reason. The reason is
// [ErrClosed] after Close, whatever body returns.
func (l *Loop) Start(body func() error, finish func(error)) {
	go func() {
		err := body()
		if l.closing.Load() {
			err = ErrClosed
		}
		l.err = err
		if e := l.link.Close(); e != nil && !errors.Is(e, net.ErrClosed) {
			l.err = errors.Join(err, e)
		}
		finish(l.err)
		close(l.dead)
	}()
}

// Post queues a function for the goroutine without waiting for it. On an error it does not run.
func (l *Loop) Post(ctx context.Context, fn func()) error {
	select {
	case <-l.dead:
		return l.err
	default:
	}
	if l.gate != nil {
		l.gate()
		if ctx.Err() != nil { // else the select below picks at random
			return context.Cause(ctx)
		}
	}
	select {
	case l.calls <- fn:
		l.link.Wake()
		return nil
	case <-l.dead:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Do runs a function in the endpoint's goroutine, between two batches of frames, and waits for it.
// If ctx ends first, the function does not run unless it has begun. A function that calls a method
// of the endpoint deadlocks.
func (l *Loop) Do(ctx context.Context, fn func()) error {
	const (
		waiting = iota
		begun
		abandoned
	)
	var state atomic.Int32
	done := make(chan struct{})
	err := l.Post(ctx, func() {
		if state.CompareAndSwap(waiting, begun) {
			fn()
		}
		close(done)
	})
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		if state.CompareAndSwap(waiting, abandoned) {
			return context.Cause(ctx)
		}
		<-done
		return nil
	case <-l.dead:
		select {
		case <-done:
			return nil
		default:
			return l.err
		}
	}
}

// Serve is an event loop: it answers packets until the endpoint is closed, the link fails or one of
// the functions does. handle sets Reply in packets that have an answer; send, which may be nil,
// sends other frames and reports whether some are left over.
func (l *Loop) Serve(handle func([]link.Packet) error, send func() (left bool, err error)) error {
	pkts := make([]link.Packet, Batch)
	for !l.Closing() {
		n, err := l.link.Receive(pkts)
		if err != nil {
			return err
		}
		l.BeginTurn()
		if n > 0 {
			if err := handle(pkts[:n]); err != nil {
				return err
			}
			if err := l.link.Reply(pkts[:n]); err != nil {
				return err
			}
		}
		busy, limit := l.RunPosted() || n > 0, time.Duration(-1)
		if send != nil {
			left, err := send()
			if err != nil {
				return err
			}
			if left {
				limit = SendRetry
			}
		}
		l.EndTurn(busy)
		if busy {
			l.FoundWork()
			continue
		}
		if l.LookAgain() {
			continue
		}
		if err := l.link.Wait(limit); err != nil {
			return err
		}
	}
	return ErrClosed
}

// RunPosted runs the functions that were posted, and reports whether there were any.
func (l *Loop) RunPosted() bool {
	for n := 0; ; n++ {
		select {
		case fn := <-l.calls:
			if n == 0 {
				l.load.beginCalls()
			}
			fn()
		default:
			if n > 0 {
				l.load.endCalls()
			}
			return n > 0
		}
	}
}

// LookAgain reports whether to poll once more before sleeping. Sleeping and waking up takes longer
// than most answers.
func (l *Loop) LookAgain() bool {
	if !l.idle.Again() {
		return false
	}
	runtime.Gosched() // the answer may come from this process
	return true
}

// FoundWork ends a look: the next one may take its whole time again.
func (l *Loop) FoundWork() { l.idle.Found() }

// Closing reports whether the endpoint was asked to end.
func (l *Loop) Closing() bool { return l.closing.Load() }

// Close ends the endpoint and its link. Pending calls fail with [ErrClosed], as do later ones. It
// may be called more than once.
func (l *Loop) Close() error {
	if l.gate != nil {
		l.gate()
	}
	l.closing.Store(true)
	l.link.Wake()
	<-l.dead
	if err := l.err; !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Done is closed when the endpoint has ended; Err then returns the reason.
func (l *Loop) Done() <-chan struct{} { return l.dead }

// Err returns why the endpoint ended, nil while it runs. It is [ErrClosed] after Close.
func (l *Loop) Err() error {
	select {
	case <-l.dead:
		return l.err
	default:
		return nil
	}
}

// SPDX-License-Identifier: Apache-2.0

package transport

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

// rxBatch is how many payloads an endpoint receives at a time.
const rxBatch = 64

// loop is the goroutine of an endpoint with its queue of calls.
type loop struct {
	link    link.Link
	gate    gate // of the link, nil if it has none
	idle    sys.Look
	pkts    []link.Packet
	calls   chan func() // run by the goroutine, in order
	closing atomic.Bool
	dead    chan struct{} // closed when the goroutine has ended
	err     error         // why it ended; written before dead is closed
}

// gate is implemented by links of a simulation. A goroutine passes it before it calls
// an endpoint, so that the simulation decides the order.
type gate interface{ Enter() }

// DefaultLook is the longest time for which an endpoint polls for frames before it sleeps, 400 µs.
const DefaultLook = sys.DefaultLook

// init prepares an endpoint on a link. A look of 0 means [DefaultLook], a negative one no polling.
func (l *loop) init(on link.Link, look time.Duration) {
	l.link = on
	l.gate, _ = on.(gate)
	if l.gate == nil { // in a simulation, time stands still while code runs
		l.idle.Limit = max(0, cmp.Or(look, DefaultLook))
	}
	l.pkts = make([]link.Packet, rxBatch)
	l.calls = make(chan func(), 64)
	l.dead = make(chan struct{})
}

// start runs the goroutine: body until it returns, then finish with the reason.
func (l *loop) start(body func() error, finish func(error)) {
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

// post queues a function for the goroutine without waiting for it. On an error
// it does not run.
func (l *loop) post(ctx context.Context, fn func()) error {
	select {
	case <-l.dead:
		return l.err
	default:
	}
	if l.gate != nil {
		l.gate.Enter()
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

// Do runs a function in the endpoint's goroutine, between two batches of
// frames, and waits for it. If ctx ends first, the function does not run unless
// it has begun. A function that calls a method of the endpoint deadlocks.
func (l *loop) Do(ctx context.Context, fn func()) error {
	const (
		waiting = iota
		begun
		abandoned
	)
	var state atomic.Int32
	done := make(chan struct{})
	err := l.post(ctx, func() {
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

// look reports whether to poll once more before sleeping. Sleeping and waking up takes longer
// than most answers.
func (l *loop) look() bool {
	if !l.idle.Again() {
		return false
	}
	runtime.Gosched() // the answer may come from this process
	return true
}

// run runs the queued calls, and reports whether there were any.
func (l *loop) run() bool {
	for n := 0; ; n++ {
		select {
		case fn := <-l.calls:
			fn()
		default:
			return n > 0
		}
	}
}

// serve answers packets until the endpoint is closed, the link fails or one of the functions
// does. handle sets Reply in packets that have an answer; send, which may be nil, sends other
// frames and reports whether some are left over.
func (l *loop) serve(handle func([]link.Packet) error, send func() (left bool, err error)) error {
	for !l.closing.Load() {
		n, err := l.link.Receive(l.pkts)
		if err != nil {
			return err
		}
		if n > 0 {
			if err := handle(l.pkts[:n]); err != nil {
				return err
			}
			if err := l.link.Reply(l.pkts[:n]); err != nil {
				return err
			}
		}
		busy, limit := l.run() || n > 0, time.Duration(-1)
		if send != nil {
			left, err := send()
			if err != nil {
				return err
			}
			if left {
				limit = sendRetry
			}
		}
		if busy {
			l.idle.Found()
			continue
		}
		if l.look() {
			continue
		}
		if err := l.link.Wait(limit); err != nil {
			return err
		}
	}
	return ErrClosed
}

// Close ends the endpoint and its link. Pending calls fail with [ErrClosed], as
// do later ones. It may be called more than once.
func (l *loop) Close() error {
	if l.gate != nil {
		l.gate.Enter()
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
func (l *loop) Done() <-chan struct{} { return l.dead }

// Err returns why the endpoint ended, nil while it runs. It is [ErrClosed]
// after Close.
func (l *loop) Err() error {
	select {
	case <-l.dead:
		return l.err
	default:
		return nil
	}
}

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"

	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
)

// ErrClosed means that an endpoint was closed. It is a net.ErrClosed.
var ErrClosed = endpoint.ErrClosed

// base is what the endpoints of this package share: the event loop, and those of its methods that
// are for users.
type base struct {
	loop endpoint.Loop
	link link.Link // the loop's
}

func (b *base) initLoop(cfg endpoint.Config) {
	b.link = cfg.Link
	b.loop.Init(cfg)
}

// Do runs a function in the endpoint's goroutine, between two batches of frames, and waits for it.
// If ctx ends first, the function does not run unless it has begun. A function that calls a method
// of the endpoint deadlocks.
func (b *base) Do(ctx context.Context, fn func()) error { return b.loop.Do(ctx, fn) }

// Close ends the endpoint and its link. Pending calls fail with [ErrClosed], as do later ones. It
// may be called more than once.
func (b *base) Close() error { return b.loop.Close() }

// Done is closed when the endpoint has ended; Err then returns the reason.
func (b *base) Done() <-chan struct{} { return b.loop.Done() }

// Err returns why the endpoint ended, nil while it runs. It is [ErrClosed] after Close.
func (b *base) Err() error { return b.loop.Err() }

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// pause is the time between attempts to reach a service again: it doubles from the shortest to the
// longest.
type pause struct{ next time.Duration }

const (
	shortestDelay = 50 * time.Millisecond
	longestDelay  = time.Second
)

// waitPause waits, or returns the reason why ctx ended.
func (p *pause) waitPause(ctx context.Context) error {
	delay := max(p.next, shortestDelay)
	p.next = min(2*delay, longestDelay)
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *pause) resetPause() { p.next = 0 }

// WhileTaken calls f again while it fails with AlreadyExists, because the owner may be about to
// give up the object: a job of a killed server, an admission of a killed worker. It gives up after
// limit. It logs once why it waits.
func WhileTaken[T any](ctx context.Context, limit time.Duration, log *slog.Logger,
	f func(context.Context) (T, error)) (T, error) {
	end := time.Now().Add(limit)
	var delay pause
	for first := true; ; first = false {
		v, err := f(ctx)
		if status.Code(err) != codes.AlreadyExists || time.Now().After(end) {
			return v, err
		}
		if first {
			cmp.Or(log, slog.Default()).Info("waiting until it is free", "reason", status.Convert(err).Message(), "at_most",
				limit)
		}
		if err := delay.waitPause(ctx); err != nil {
			return v, err
		}
	}
}

// Repeat calls f again while the connection to its service is broken, until ctx ends. f must be
// idempotent.
func Repeat(ctx context.Context, f func(context.Context) error) error {
	var delay pause
	for {
		err := f(ctx)
		if status.Code(err) != codes.Unavailable {
			return err
		}
		if err := delay.waitPause(ctx); err != nil {
			return err
		}
	}
}

// whileBroken calls f again while its connection is broken, for as long as services keep what
// belongs to a broken connection: a link may be down while a peer sets something up, too.
func whileBroken[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	var end time.Time
	var delay pause
	for {
		v, err := f(ctx)
		if status.Code(err) != codes.Unavailable {
			return v, err
		}
		if end.IsZero() {
			end = time.Now().Add(DefaultGrace)
		}
		if time.Now().After(end) || delay.waitPause(ctx) != nil {
			return v, err
		}
	}
}

// Stay opens a stream, returns its first message and keeps it open until ctx ends. When its
// connection breaks, open is called again, with the newest first message, for as long as grace of
// that message allows. Messages after the first, including the first of another stream, are passed
// to more, if it is not nil. When the service ends the stream, or cannot be reached for that long,
// lost is called, once; in the latter case, and if the service refuses to open it again, with a
// [brokenError].
func Stay[M any](ctx context.Context, open func(ctx context.Context, newest *M) (grpc.ServerStreamingClient[M],
	error), grace func(*M) time.Duration, more func(*M), lost func(error)) (*M, error) {
	type opened struct {
		stream grpc.ServerStreamingClient[M]
		first  *M
	}
	begun, err := whileBroken(ctx, func(ctx context.Context) (o opened, err error) {
		o.stream, o.first, err = openFirst(ctx, open, nil)
		return o, err
	})
	if err != nil {
		return nil, err
	}
	stream, newest := begun.stream, begun.first
	first := newest
	go func() {
		for {
			another, err := stream.Recv() // until the end of the stream
			for err == nil {
				if more != nil {
					more(another)
				}
				another, err = stream.Recv()
			}
			end := time.Now().Add(grace(newest))
			broke := status.Code(err) == codes.Unavailable
			var delay pause
			for status.Code(err) == codes.Unavailable && time.Now().Before(end) {
				if delay.waitPause(ctx) != nil {
					break
				}
				var again *M
				if stream, again, err = openFirst(ctx, open, newest); err == nil {
					newest = again
					if more != nil {
						more(again)
					}
				}
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil && broke {
				err = brokenError{err}
			}
			if err != nil {
				lost(err)
				return
			}
		}
	}()
	return first, nil
}

// brokenError is why a stream whose connection broke was not opened again.
type brokenError struct{ error }

func (e brokenError) Unwrap() error              { return e.error }
func (e brokenError) GRPCStatus() *status.Status { return status.Convert(e.error) }

// openFirst opens a stream and returns its first message.
func openFirst[M any](ctx context.Context, open func(context.Context, *M) (grpc.ServerStreamingClient[M], error),
	newest *M) (grpc.ServerStreamingClient[M], *M, error) {
	stream, err := open(ctx, newest)
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	return stream, first, err
}

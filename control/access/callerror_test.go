// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestCallErrors(t *testing.T) {
	if err := CallError(SwitchDaemon, "join", nil); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"switch daemon ended join":              io.EOF,
		"switch daemon: join: context canceled": status.Error(codes.Canceled, "whatever"),
		"switch daemon: join: no job 5":         status.Error(codes.NotFound, "no job 5"),
		"switch daemon: join: a different service answers there: is the address right?": status.Error(codes.Unimplemented, "unknown service libra.Aggregator"),
		// An older aggregator, and one with a similar error text.
		"switch daemon: join: unknown method Join":     status.Error(codes.Unimplemented, "unknown method Join"),
		"switch daemon: join: unknown service class 5": status.Error(codes.InvalidArgument, "unknown service class 5"),
		"switch daemon: join: file already closed":     net.ErrClosed,
	} {
		if want == "switch daemon: join: file already closed" {
			want = "switch daemon: join: " + net.ErrClosed.Error()
		}
		if got := CallError(SwitchDaemon, "join", err); got.Error() != want {
			t.Errorf("%v becomes %q, want %q", err, got, want)
		}
	}
	// A broken connection, in gRPC's terms and in plain ones.
	for message, reason := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 192.0.2.1:7700: connect: connection refused"`: "dial tcp 192.0.2.1:7700: connect: connection refused",
		"error reading from server: EOF": "the other side closed it",
		`closing transport due to: connection error: desc = "error reading from server: read tcp: i/o timeout", received prior goaway: code: NO_ERROR`: "read tcp: i/o timeout",
		`connection error: desc = "transport is closing"`:                                "transport is closing",
		`connection error: desc = "keepalive ping failed to receive ACK within timeout"`: "keepalive ping failed to receive ACK within timeout",
		"keepalive ping failed to receive ACK within timeout":                            "keepalive ping failed to receive ACK within timeout",
		"transport is closing": "transport is closing",
	} {
		want := "switch daemon: join: the connection broke (" + reason + "): is the switch daemon running, and can this host reach it?"
		if got := CallError(SwitchDaemon, "join", status.Error(codes.Unavailable, message)); got.Error() != want {
			t.Errorf("%s becomes %q, want %q", message, got, want)
		}
	}
	// A service that answers so has not died: who joins again after a lost server does not after this.
	busy := CallError(SwitchDaemon, "join", status.Error(codes.Unavailable, "a newer connection has taken over"))
	if want := "switch daemon: join: a newer connection has taken over"; errors.Is(busy, ErrBroken) || busy.Error() != want {
		t.Errorf("%q (broken: %v), want %q", busy, errors.Is(busy, ErrBroken), want)
	}
	gone := CallError(SwitchDaemon, "join", status.Error(codes.Unavailable, "error reading from server: EOF"))
	if !errors.Is(gone, ErrBroken) {
		t.Errorf("%v is no broken connection", gone)
	}
	if err := CallError(SwitchDaemon, "join", status.Error(codes.Canceled, "")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v is no cancellation", err)
	}
	if err := CallError(SwitchDaemon, "join", status.Error(codes.DeadlineExceeded, "context deadline exceeded")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not the caller's deadline", err)
	}
	if err := CallError(SwitchDaemon, "join", net.ErrClosed); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v is not what it was", err)
	}
}

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
	if err := CallError("aggregator", "join", nil); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"aggregator ended join":              io.EOF,
		"aggregator: join: context canceled": status.Error(codes.Canceled, "whatever"),
		"aggregator: join: no job 5":         status.Error(codes.NotFound, "no job 5"),
		"aggregator: join: a different service answers there: is the address right?": status.Error(codes.Unimplemented, "unknown service libra.Aggregator"),
		// An older aggregator, and one with a similar error text.
		"aggregator: join: unknown method Join":     status.Error(codes.Unimplemented, "unknown method Join"),
		"aggregator: join: unknown service class 5": status.Error(codes.InvalidArgument, "unknown service class 5"),
		"aggregator: join: file already closed":     net.ErrClosed,
	} {
		if want == "aggregator: join: file already closed" {
			want = "aggregator: join: " + net.ErrClosed.Error()
		}
		if got := CallError("aggregator", "join", err); got.Error() != want {
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
		want := "aggregator: join: the connection broke (" + reason + "): is the aggregator running, and can this host reach it?"
		if got := CallError("aggregator", "join", status.Error(codes.Unavailable, message)); got.Error() != want {
			t.Errorf("%s becomes %q, want %q", message, got, want)
		}
	}
	if err := CallError("aggregator", "join", status.Error(codes.Canceled, "")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v is no cancellation", err)
	}
	if err := CallError("aggregator", "join", status.Error(codes.DeadlineExceeded, "context deadline exceeded")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not the caller's deadline", err)
	}
	if err := CallError("aggregator", "join", net.ErrClosed); !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v is not what it was", err)
	}
}

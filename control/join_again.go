// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// Join admits a worker to a job, at its parameter servers and at the aggregator. The admission
// outlives neither ctx nor Leave. The error names the service and what it refused; a TLS mismatch
// wraps [access.ErrTLS].
func Join(ctx context.Context, cfg JoinConfig) (*Membership, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Limit = cmp.Or(cfg.Limit, DefaultJoinLimit)
	var delay pause
	until, forgotten := time.Now().Add(cfg.Limit), time.Time{}
	for {
		began, end := time.Now(), until // an outage may be most of an attempt: one that began in time is repeated
		m, err := joinOnce(ctx, cfg)
		switch {
		case errors.Is(err, errForgotten):
			if forgotten.IsZero() {
				forgotten = time.Now()
			}
			end = forgotten.Add(DefaultGrace)
		case !errors.Is(err, errRestarted) && !errors.Is(err, errMoved):
			return m, err
		}
		if began.After(end) {
			return m, err
		}
		cfg.logger().Info("the job has changed while the worker joined: it joins again", "refusal", err)
		if err := delay.waitPause(ctx); err != nil {
			return nil, err
		}
	}
}

// errRestarted is in the errors of a worker that has met two instances of a server while it joined:
// what it presents may be of the earlier one.
var errRestarted = errors.New("the server was restarted meanwhile")

// restartedStatus is the answer to a worker that has asked an earlier run of a server.
func restartedStatus(worker uint16) error {
	told := status.Newf(codes.FailedPrecondition, "worker %d has asked this server before it was started again: it must ask anew",
		worker)
	if detailed, err := told.WithDetails(&pb.Restarted{}); err == nil {
		told = detailed
	}
	return told.Err()
}

// isRestarted reports whether an error is of [restartedStatus].
func isRestarted(err error) bool {
	return slices.ContainsFunc(status.Convert(err).Details(), func(detail any) bool {
		_, is := detail.(*pb.Restarted)
		return is
	})
}

// errMoved is in the errors of a worker that has met two generations of a job while it joined.
var errMoved = errors.New("the job has lost its aggregator meanwhile, or goes on at another one")

// errForgotten is in the errors of a worker whose aggregator does not know the job that the server
// has there: it was restarted, and the server is about to notice.
var errForgotten = errors.New("the server still has the job there: was the switch restarted, or is it another one?")

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"time"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
)

// endWithin is how long a server may go on after the one with index 0 has ended the job: it
// probably ends by itself, for a reason of its own, or because its workers have finished.
const endWithin = 2 * control.DefaultGrace

var errOthersFinished = errors.New("parameter server 0 has finished the job, and workers have not finished here")

// followFirst ends a server when the one with index 0 has ended the job. Without that one no worker
// can begin, or go on. It may start later.
func (s *server) followFirst(ctx context.Context, cancel context.CancelCauseFunc, service *control.ParameterServer,
	security access.Security) {
	job, first := s.env.Config.Job.ID, s.env.Config.Servers[0].Control
	ended := func(why error) {
		if errors.Is(why, control.ErrDiverged) {
			s.keepGood("the training has diverged at parameter server 0", "do what the error of that server says")
		}
		endAfterFirst(ctx, cancel, service, why)
	}
	for ctx.Err() == nil {
		conn, err := access.Dial(ctx, access.ServerOf(job).Named("parameter server 0"), first, security, startLimit,
			s.env.Log, s.env.Machine.Client...)
		if err == nil {
			context.AfterFunc(ctx, func() { conn.Close() })
			err = control.Follow(ctx, conn, job, s.env.Server, ended)
			if err == nil {
				return
			}
			conn.Close()
		}
		if errors.Is(err, access.ErrTLS) {
			s.env.Log.Warn("this server does not end with parameter server 0", "error", err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// endAfterFirst ends a server after the one with index 0 has ended the job, because of why, or nil.
func endAfterFirst(ctx context.Context, cancel context.CancelCauseFunc, service *control.ParameterServer, why error) {
	if why == nil {
		why = errOthersFinished
	}
	select {
	case <-ctx.Done():
	case <-time.After(endWithin):
		if len(service.Unfinished()) > 0 { // otherwise it applies the rest
			cancel(why)
		}
	}
}

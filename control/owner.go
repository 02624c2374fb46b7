// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Owned is a job that this process has created.
type Owned struct {
	ID uint16
	*pb.Job
	// Silence is how long the aggregator may be out of reach, or send no heartbeat, until it is lost;
	// at least [MinSilence]. 0 means the lease, and that an aggregator may be silent while its
	// connection is not broken.
	Silence time.Duration
	// Beat, if not nil, is called with each heartbeat. It must not wait.
	Beat   func(*pb.HoldResponse)
	client pb.AggregatorClient
}

// CreateJob creates a job at an aggregator. While another job has its id, such as one of a killed
// process whose lease runs, it retries for the given time. If the connection breaks, it asks again,
// and gets the job that it has created. Unless [Owned.Hold] is called, the job ends with its lease.
// The attempt of the specification is replaced, in a copy.
func CreateJob(ctx context.Context, client pb.AggregatorClient, spec *pb.JobSpec, limit time.Duration,
	log *slog.Logger) (*Owned, error) {
	spec = proto.CloneOf(spec)
	attempt := access.NewRandom(nil).Secret()
	spec.Attempt = attempt[:]
	job, err := WhileTaken(ctx, limit, log, func(ctx context.Context) (*pb.Job, error) {
		return whileBroken(ctx, func(ctx context.Context) (*pb.Job, error) { return client.CreateJob(ctx, spec) })
	})
	if err != nil {
		return nil, access.CallError(access.SwitchDaemon, "create job", err)
	}
	return &Owned{ID: uint16(spec.Job), Job: job, client: client}, nil
}

// Hold keeps the job alive until ctx ends. When the aggregator has ended the job, or cannot be
// reached for the length of Silence, lost is called with the reason; and whenever it has been
// silent for so long, with [ErrSilent].
func (o *Owned) Hold(ctx context.Context, lost func(error)) error {
	ctx, end := context.WithCancel(ctx)
	silence := cmp.Or(o.Silence, time.Duration(o.LeaseMs)*time.Millisecond)
	req := &pb.HoldRequest{Job: uint32(o.ID), Key: o.Key, Heartbeats: o.Silence != 0 || o.Beat != nil}
	heard := make(chan struct{}, 1)
	first, err := Stay(ctx,
		func(ctx context.Context, _ *pb.HoldResponse) (grpc.ServerStreamingClient[pb.HoldResponse], error) {
			return o.client.Hold(ctx, req)
		},
		func(*pb.HoldResponse) time.Duration { return silence },
		func(beat *pb.HoldResponse) {
			select {
			case heard <- struct{}{}:
			default:
			}
			if o.Beat != nil {
				o.Beat(beat)
			}
		},
		func(err error) {
			end()
			lost(ofAggregator(err, o.Lost("hold", err)))
		})
	switch {
	case err != nil:
		end()
	case o.Silence != 0 && first.HeartbeatMs != 0: // those of earlier releases send none
		go o.watch(ctx, heard, lost)
	}
	return access.CallError(access.SwitchDaemon, "hold", err)
}

// ErrRemoved is in the errors of [Owned.Lost], [Owned.Remove] and [Follow] if an operator removed
// the job: it is over, and not to be created again by itself.
var ErrRemoved = errors.New("the job was removed by an operator")

// ErrDiverged is in the errors of [Follow] if the training has diverged: weights that are written
// now are not worth keeping.
var ErrDiverged = errors.New("the training has diverged")

// ErrAggregatorLost is in the errors of [Owned.Lost] and [JoinConfig.Lost] if the aggregator did
// not end the job or the worker's part in it, but was stopped, or restarted, or cannot be reached
// any more: what it had is lost.
var ErrAggregatorLost = errors.New("the aggregator was lost")

// ofAggregator returns an error that is [ErrAggregatorLost] if a stream's end says so.
func ofAggregator(end, err error) error {
	var broke brokenError
	answer, stopping := status.Convert(end), status.Convert(errStopping)
	if errors.As(end, &broke) || answer.Code() == stopping.Code() && answer.Message() == stopping.Message() {
		return reasonError{err, ErrAggregatorLost}
	}
	return err
}

// reasonError is an error with its own text that is also another one.
type reasonError struct {
	error
	is error
}

func (e reasonError) Unwrap() error { return e.error }

func (e reasonError) Is(target error) bool { return target == e.is }

// Lost explains an error of a call that ended because the aggregator has ended the job or cannot be
// reached. It returns other errors unchanged.
func (o *Owned) Lost(call string, err error) error {
	answer, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	return withReason(answer, fmt.Errorf("lost job %d: %w", o.ID, access.CallError(access.SwitchDaemon, call, err)))
}

// withReason returns an error that is [ErrRemoved] or [ErrDiverged] if the answer of a service says
// so.
func withReason(answer *status.Status, err error) error {
	for _, detail := range answer.Details() {
		switch detail.(type) {
		case *pb.Removed:
			err = reasonError{err, ErrRemoved}
		case *pb.Diverged:
			err = reasonError{err, ErrDiverged}
		}
	}
	return err
}

// Remove ends the job. While the connection is broken it retries, until ctx ends. If there is no
// job, or it has another owner, this one has ended already.
func (o *Owned) Remove(ctx context.Context) error {
	var delay pause
	for again := false; ; again = true {
		_, err := o.client.RemoveJob(ctx, &pb.RemoveJobRequest{Job: uint32(o.ID), Key: o.Key, Instance: o.Instance})
		answer := status.Convert(err)
		if again && (answer.Code() == codes.NotFound || answer.Code() == codes.PermissionDenied) {
			return nil
		}
		_, broken := access.BrokenBy(answer.Message())
		if answer.Code() != codes.Unavailable || !broken || delay.waitPause(ctx) != nil {
			return withReason(answer, access.CallError(access.SwitchDaemon, "remove job", err))
		}
	}
}

// AddChild makes a job at another aggregator, whose control service has an address, a child of this
// one, which gets its sums from then on: see AddChild of the service. Its ranks follow one another
// in runs. Nothing may have been pushed to it before.
func (o *Owned) AddChild(ctx context.Context, control netip.AddrPort, child *Owned, ranks []*pb.RankRun) error {
	req := &pb.AddChildRequest{Job: uint32(o.ID), Key: o.Key, Control: control.String(), Child: uint32(child.ID),
		Instance: child.Instance, ChildKey: child.Key, Ranks: ranks}
	_, err := whileBroken(ctx, func(ctx context.Context) (*pb.AddChildResponse, error) {
		return o.client.AddChild(ctx, req)
	})
	if status.Code(err) == codes.Unimplemented {
		return fmt.Errorf("%w: run the same version of libra on all switches, or leave parent out",
			access.CallError(access.SwitchDaemon, "add child", err))
	}
	return access.CallError(access.SwitchDaemon, "add child", err)
}

// RemoveChild ends that, and returns the number of the child's newest harvest whose sums this job's
// owner has acknowledged.
func (o *Owned) RemoveChild(ctx context.Context, child *Owned) (last uint64, err error) {
	req := &pb.RemoveChildRequest{Job: uint32(o.ID), Key: o.Key, Instance: child.Instance}
	answer, err := whileBroken(ctx, func(ctx context.Context) (*pb.RemoveChildResponse, error) {
		return o.client.RemoveChild(ctx, req)
	})
	return answer.GetLast(), access.CallError(access.SwitchDaemon, "remove child", err)
}

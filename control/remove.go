// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// RemoveJob implements the service.
func (a *Aggregator) RemoveJob(ctx context.Context, req *pb.RemoveJobRequest) (*pb.RemoveJobResponse, error) {
	var j *job
	var err error
	if len(req.Key) > 0 {
		j, err = a.owned(ctx, req.Job, req.Key)
	} else if err = access.CallerOf(ctx).NeedOperator(); err == nil {
		j, err = a.job(req.Job)
	}
	if err != nil {
		return nil, err
	}
	if req.Instance != 0 && req.Instance != j.instance {
		return nil, status.Errorf(codes.NotFound, "job %d is now instance %d, not %d", req.Job, j.instance, req.Instance)
	}
	if err := a.remove(j, len(req.Key) == 0, "its owner or an operator asked for it"); err != nil {
		return nil, err
	}
	return &pb.RemoveJobResponse{}, nil
}

// remove ends a job. Its id and budgets stay reserved until the data plane has released it; other
// jobs do not wait for that.
func (a *Aggregator) remove(j *job, byOperator bool, why string) error {
	told := status.Errorf(codes.Aborted, "job %d was removed", j.cfg.ID)
	a.mu.Lock()
	running := j.running
	j.running = false
	if running && byOperator {
		told, a.removed[j.cfg.ID] = removedByOperator(j.cfg.ID), j.key
	}
	a.spend(j)
	a.mu.Unlock()
	if !running {
		return status.Errorf(codes.NotFound, "no job %d: it is being removed", j.cfg.ID)
	}
	j.stopStreams(told)
	err := j.releasePlane()
	a.forget(j)
	if err != nil { // an error about its memory, perhaps; the data plane no longer has the job
		return err
	}
	a.cfg.Log.Info("job removed", "job", j.cfg.ID, "instance", j.instance, "harvests", j.harvestStream(), "because", why)
	return nil
}

// removedByOperator is what the owner of a job is told that an operator has removed.
func removedByOperator(job uint16) error {
	told := status.Newf(codes.Aborted, "job %d was removed by an operator", job)
	if detailed, err := told.WithDetails(&pb.Removed{}); err == nil {
		told = detailed
	}
	return told.Err()
}

// persist repeats a call that removes something from the data plane while the data plane is too
// busy, until the service ends; otherwise the data plane would keep what the service no longer
// knows. A call that fails may still have removed it, and the next call then does not find it.
func (a *Aggregator) persist(call func() error) error {
	var delay pause
	err := call()
	for errors.Is(err, aggregator.ErrBusy) {
		if delay.waitPause(a.ctx) != nil {
			return errStopping // not busy: the caller need not retry, because all jobs end with the service
		}
		again := call()
		if errors.Is(again, aggregator.ErrNoJob) || errors.Is(again, aggregator.ErrNoSender) {
			return err
		}
		err = again
	}
	return err
}

// expire removes a job whose lease has ended.
func (a *Aggregator) expire(j *job) {
	a.goBackground(func() {
		if err := a.remove(j, false, "its owner was not connected for "+a.cfg.Lease.String()); err != nil &&
			status.Code(err) != codes.NotFound {
			a.cfg.Log.Warn("cannot remove a job whose lease has ended", "job", j.cfg.ID, "error", err)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// HeartbeatEvery is the time between two heartbeats on the stream by which an owner holds its job.
const HeartbeatEvery = 100 * time.Millisecond

// MinSilence is the shortest [Owned.Silence] that one late heartbeat does not exceed.
const MinSilence = 3 * HeartbeatEvery

// ErrSilent is in the error of an owner that hears nothing of its aggregator, although the
// connection may still be there: the daemon has died or is suspended, or the network loses what it
// sends.
var ErrSilent = errors.New("no heartbeat of the switch daemon has come")

// heartbeat describes the job and its data plane. What it cannot count is 0: the daemon is alive
// all the same.
func (a *Aggregator) heartbeat(j *job) *pb.HoldResponse {
	m := &pb.HoldResponse{HeartbeatMs: uint32(HeartbeatEvery.Milliseconds())}
	if c, err := j.plane.JobCounters(j.cfg.ID); err == nil {
		m.Frames, m.Raced, m.Throttled = answered(&c), c.Raced, c.Throttled
	}
	if c, err := j.plane.Counters(); err == nil {
		m.Unsent = c.Unanswered + c.UnsentAnswers
	}
	return m
}

func answered(c *aggregator.JobCounters) uint64 { return c.Applied + c.Duplicates + c.Refused.Total() }

// sendHeartbeats sends heartbeats to the owner of a job until ctx ends. It is a goroutine of its
// own: one that waits for an owner which reads nothing must not keep the stream from ending.
func (a *Aggregator) sendHeartbeats(ctx context.Context, j *job, stream grpc.ServerStreamingServer[pb.HoldResponse]) {
	tick := time.NewTicker(HeartbeatEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if stream.Send(a.heartbeat(j)) != nil {
			return // the stream has ended
		}
	}
}

// looks is how often an owner looks for a heartbeat during its Silence.
const looks = 10

// watch calls lost whenever no heartbeat has come for the length of Silence. It counts its own
// looks rather than time: a process that was suspended itself has missed no heartbeat, they only
// wait to be read.
func (o *Owned) watch(ctx context.Context, heard <-chan struct{}, lost func(error)) {
	tick := time.NewTicker(o.Silence / looks)
	defer tick.Stop()
	for quiet := 0; ; {
		select {
		case <-heard:
			quiet = 0
		case <-tick.C:
			if quiet++; quiet > looks {
				quiet = 0
				lost(fmt.Errorf("lost job %d: %w for %v: it has died or is suspended, or the network loses what it sends", o.ID,
					ErrSilent, o.Silence))
			}
		case <-ctx.Done():
			return
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

const (
	// chunkSums bounds a harvest message to just below 32 KB, the largest buffer but one that
	// gRPC keeps: for more, it clears one of a megabyte, at either end.
	chunkSums = 62 * groupSlots

	// countEvery is how often a job that is harvested by count is looked at.
	// Reading its counters takes some microseconds.
	countEvery = time.Millisecond
)

type harvestStream = grpc.BidiStreamingServer[pb.HarvestRequest, pb.HarvestChunk]

// serveHarvest runs the harvest of a job on one stream, after the one before it
// is over. The stream's context ends it, wherever it waits.
func (j *job) serveHarvest(stream harvestStream, last uint64) error {
	ctx := stream.Context()
	select {
	case j.harvesting <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-j.harvesting }()
	select {
	case <-j.ended: // before this stream had the token
		return j.why
	default:
	}
	if err := j.resume(last); err != nil {
		return err
	}
	if j.pending {
		// It answers no request of this stream, which counts anew.
		if err := j.send(stream, 0); err != nil {
			return err
		}
	}
	h := &harvestSession{job: j, stream: stream, due: newDue(j.spec)}
	defer h.due.stop()
	return h.run()
}

// harvestSession is the sender's end of one stream.
type harvestSession struct {
	*job
	stream   harvestStream
	due      *due
	asked    uint64 // newest request
	answered uint64 // newest request that is or was answered
}

// run harvests when it is due or asked for, one harvest at a time: while one is
// pending, periods pass and requests are remembered.
func (h *harvestSession) run() error {
	requests, ended := receive(h.stream)
	for {
		if !h.pending && h.asked > h.answered {
			h.due.anew() // the sums that a period bounds the age of are in this one
			if err := h.harvest(); err != nil {
				return err
			}
		}
		period, count := h.due.period, h.due.count
		if h.pending {
			period, count = nil, nil
		}
		var err error
		select {
		case <-period:
			ticked(count)
			err = h.harvest()
		case <-count:
			if ticked(period) {
				err = h.harvest()
			} else {
				err = h.harvestCounted()
			}
		case req := <-requests:
			err = h.take(req)
		case err = <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err != nil {
			return err
		}
	}
}

// ticked takes a tick that waits, if there is one. Both kinds may wait when a harvest is
// acknowledged: that it is time is the reason then, and one harvest answers both. Which
// of the two select takes first is chance, and by count a new period begins.
func ticked(c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// receive reads a stream's requests, until it ends.
func receive(stream harvestStream) (<-chan *pb.HarvestRequest, <-chan error) {
	requests := make(chan *pb.HarvestRequest)
	ended := make(chan error, 1)
	go func() {
		for {
			req, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			select {
			case requests <- req:
			case <-stream.Context().Done():
				ended <- stream.Context().Err()
				return
			}
		}
	}()
	return requests, ended
}

// harvest harvests. What was acknowledged since a swap began that took several tries
// is in the other bank, so such a harvest answers no request that came meanwhile; the
// next one does.
func (h *harvestSession) harvest() error {
	if !h.swapping {
		h.answered = h.asked
	}
	if err := h.freeze(); err != nil {
		return err
	}
	return h.send(h.stream, h.answered)
}

// harvestCounted harvests if there are enough frames.
func (h *harvestSession) harvestCounted() error {
	enough, err := h.enough()
	if err != nil || !enough {
		return err
	}
	h.due.anew()
	return h.harvest()
}

// take takes a request.
func (h *harvestSession) take(req *pb.HarvestRequest) error {
	switch what := req.What.(type) {
	case *pb.HarvestRequest_Now:
		h.asked = max(h.asked, what.Now)
		return nil
	case *pb.HarvestRequest_Done:
		if !h.pending || what.Done != h.harvests() {
			return status.Errorf(codes.InvalidArgument, "job %d: harvest %d is not waiting for an acknowledgement", h.cfg.ID, what.Done)
		}
		return h.clear()
	}
	return status.Errorf(codes.InvalidArgument, "job %d: a harvest begins once", h.cfg.ID)
}

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
	// chunkLen is the length of the sums and marks of a harvest message: the rest is for its other
	// fields. It keeps the message just below 32 KB, the second largest buffer size that gRPC
	// pools: for a larger message both ends clear a buffer of 1 MB.
	chunkLen = 32<<10 - 128

	// chunkSums is how many sums of consecutive slots such a message has.
	chunkSums = 62 * groupSlots

	// countEvery is how often the counters of a job with harvests by count are checked. Reading
	// them takes some microseconds.
	countEvery = time.Millisecond
)

type harvestStream = grpc.BidiStreamingServer[pb.HarvestRequest, pb.HarvestChunk]

// serveHarvest runs the harvest of a job on one stream, after the previous stream has ended. The
// stream's context ends it, wherever it waits.
func (j *job) serveHarvest(stream harvestStream, begin *pb.HarvestBegin) error {
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
	if err := j.resumeStream(begin.Last); err != nil {
		return err
	}
	if j.pending {
		// It answers no request of this stream, which numbers requests from 1 again.
		if err := j.sendHarvest(stream, 0, begin); err != nil {
			return err
		}
	}
	h := &harvestSession{job: j, stream: stream, owner: begin, due: newDue(j.spec)}
	defer h.due.stopTicker()
	return h.runSession()
}

// harvestSession is the sending end of one stream.
type harvestSession struct {
	*job
	stream   harvestStream
	owner    *pb.HarvestBegin // what it takes
	due      *due
	asked    uint64 // newest request
	answered uint64 // newest request that the current or an earlier harvest answers
}

// runSession harvests when a harvest is due or requested, one at a time: while one is pending,
// ticks and requests wait.
func (h *harvestSession) runSession() error {
	requests, ended := receive(h.stream)
	for {
		if !h.pending && h.asked > h.answered {
			h.due.restartPeriod() // this harvest has the sums whose age the period bounds
			if err := h.harvestOnce(); err != nil {
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
			err = h.harvestOnce()
		case <-count:
			if ticked(period) {
				err = h.harvestOnce()
			} else {
				err = h.harvestCounted()
			}
		case req := <-requests:
			err = h.takeRequest(req)
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

// ticked consumes a pending tick, if there is one. Both kinds may be pending when a harvest is
// acknowledged; one harvest then answers both, for the reason of time. Which case select takes
// first is random, and a harvest by count restarts the period.
func ticked(c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// receive reads a stream's requests until it ends.
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

// harvestOnce harvests. If a swap took several tries, frames acknowledged since its first try are
// in the other bank, so that harvest answers no request made since then; the next one does. So does
// the next one after that which a child has sent again.
func (h *harvestSession) harvestOnce() error {
	whole, err := h.gatherChildren(h.stream.Context())
	if err != nil {
		return err
	}
	if !h.swapping && whole {
		h.answered = h.asked
	}
	if err := h.freezeBank(); err != nil {
		return err
	}
	return h.sendHarvest(h.stream, h.answered, h.owner)
}

// harvestCounted harvests if there are enough frames.
func (h *harvestSession) harvestCounted() error {
	enough, err := h.enoughFrames()
	if err != nil || !enough {
		return err
	}
	h.due.restartPeriod()
	return h.harvestOnce()
}

// takeRequest processes a request.
func (h *harvestSession) takeRequest(req *pb.HarvestRequest) error {
	switch what := req.What.(type) {
	case *pb.HarvestRequest_Now:
		h.asked = max(h.asked, what.Now)
		return nil
	case *pb.HarvestRequest_Done:
		if !h.pending || what.Done != h.harvestStream() {
			return status.Errorf(codes.InvalidArgument, "job %d: harvest %d is not waiting for an acknowledgement", h.cfg.ID,
				what.Done)
		}
		return h.clearHarvest()
	}
	return status.Errorf(codes.InvalidArgument, "job %d: a harvest begins once", h.cfg.ID)
}

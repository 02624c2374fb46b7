package control

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

const (
	// chunkSums bounds a harvest message to about 200 KB.
	chunkSums = 16384

	// countEvery is how often a job that is harvested by count is looked at.
	// Reading its counters takes some microseconds.
	countEvery = time.Millisecond
)

type harvestStream = grpc.BidiStreamingServer[pb.HarvestRequest, pb.HarvestChunk]

// serveHarvest runs the harvest of a job until its server hangs up.
func (j *job) serveHarvest(ctx context.Context, stream harvestStream) error {
	select {
	case j.harvesting <- struct{}{}:
	default:
		return status.Errorf(codes.AlreadyExists, "job %d is being harvested by another parameter server", j.cfg.ID)
	}
	defer func() { <-j.harvesting }()
	select {
	case <-j.removed: // before this stream had the token
		return status.Errorf(codes.Aborted, "job %d was removed", j.cfg.ID)
	default:
	}

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
				return
			}
		}
	}()
	due := newDue(j.spec)
	defer due.stop()

	// A bank left by a broken stream is sent again. It answers no request of
	// this stream: its server may be a new process that counts from 1.
	j.ticket = 0
	j.began()
	pending := j.frozen != nil
	if pending {
		if err := j.send(stream); err != nil {
			return err
		}
	}
	var asked uint64
	harvest := func() error {
		pending, j.ticket = true, asked
		return j.harvest(stream)
	}
	for {
		// One harvest at a time: while one is unacknowledged, periods pass
		// and requests are remembered.
		if !pending && asked > j.ticket {
			if err := harvest(); err != nil {
				return err
			}
		}
		period, count := due.period, due.count
		if pending {
			period, count = nil, nil
		}
		select {
		case <-period:
			if err := harvest(); err != nil {
				return err
			}
		case <-count:
			enough, err := j.enough()
			if err == nil && enough {
				due.counted()
				err = harvest()
			}
			if err != nil {
				return err
			}
		case req := <-requests:
			switch what := req.What.(type) {
			case *pb.HarvestRequest_Now:
				asked = max(asked, what.Now)
			case *pb.HarvestRequest_Done:
				if !pending || what.Done != j.harvests() {
					return status.Errorf(codes.InvalidArgument, "job %d: harvest %d is not waiting for an acknowledgement", j.cfg.ID, what.Done)
				}
				if err := j.clear(); err != nil {
					return planeError(err)
				}
				pending = false
			}
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-j.removed:
			return status.Errorf(codes.Aborted, "job %d was removed", j.cfg.ID)
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "the aggregator is stopping")
		}
	}
}

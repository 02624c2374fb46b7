package control

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// chunkSums bounds a harvest message to about 200 KB.
const chunkSums = 16384

// job is one job of an aggregator, with the state of its harvest.
type job struct {
	plane   aggregator.Plane
	spec    *pb.JobSpec
	id      uint16
	epoch   uint16
	removed chan struct{}

	// harvesting is held by the one stream that may harvest.
	harvesting sync.Mutex
	// frozen is the bank that the parameter server has not acknowledged. It
	// outlives a broken stream; harvesting guards it.
	frozen *aggregator.Bank
	ticket uint64 // newest request of the stream that is or was answered

	mu      sync.Mutex
	number  uint64 // of the latest harvest
	applied uint64 // frames applied when the latest bank was frozen
}

func newJob(plane aggregator.Plane, spec *pb.JobSpec, id, epoch uint16) *job {
	return &job{plane: plane, spec: spec, id: id, epoch: epoch, removed: make(chan struct{})}
}

func (j *job) harvests() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.number
}

func (j *job) remove() error {
	close(j.removed) // ends a harvest, so that the bank is not read any more
	j.harvesting.Lock()
	defer j.harvesting.Unlock()
	j.frozen = nil
	return j.plane.RemoveJob(j.id)
}

func (j *job) withdraw(sender uint16, log *slog.Logger) {
	err := j.plane.RemoveSender(j.id, sender)
	if err != nil && !errors.Is(err, aggregator.ErrNoJob) && !errors.Is(err, aggregator.ErrClosed) {
		log.Warn("cannot withdraw a sender", "job", j.id, "sender", sender, "error", err)
	}
}

type harvestStream = grpc.BidiStreamingServer[pb.HarvestRequest, pb.HarvestChunk]

// serveHarvest runs the harvest of a job until its server hangs up.
func (j *job) serveHarvest(ctx context.Context, stream harvestStream) error {
	if !j.harvesting.TryLock() {
		return status.Errorf(codes.AlreadyExists, "job %d is being harvested by another parameter server", j.id)
	}
	defer j.harvesting.Unlock()

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
	var tick <-chan time.Time
	if period := time.Duration(j.spec.HarvestPeriodUs) * time.Microsecond; period > 0 {
		t := time.NewTicker(period)
		defer t.Stop()
		tick = t.C
	}

	// A bank left by a broken stream is sent again. It answers no request of
	// this stream: its server may be a new process that counts from 1.
	j.ticket = 0
	pending := j.frozen != nil
	if pending {
		if err := j.send(stream); err != nil {
			return err
		}
	}
	var asked uint64
	for {
		// One harvest at a time: while one is unacknowledged, periods pass
		// and requests are remembered.
		if !pending && asked > j.ticket {
			j.ticket = asked
			pending = true
			if err := j.harvest(stream); err != nil {
				return err
			}
		}
		due := tick
		if pending {
			due = nil
		}
		select {
		case <-due:
			pending = true
			if err := j.harvest(stream); err != nil {
				return err
			}
		case req := <-requests:
			switch what := req.What.(type) {
			case *pb.HarvestRequest_Now:
				asked = max(asked, what.Now)
			case *pb.HarvestRequest_Done:
				if !pending || what.Done != j.harvests() {
					return status.Errorf(codes.InvalidArgument, "job %d: harvest %d is not waiting for an acknowledgement", j.id, what.Done)
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
			return status.Errorf(codes.Aborted, "job %d was removed", j.id)
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "the aggregator is stopping")
		}
	}
}

// harvest freezes the current bank and sends it. If nothing was added since
// the last harvest, it sends an empty one and leaves the banks alone.
func (j *job) harvest(stream harvestStream) error {
	c, err := j.plane.JobCounters(j.id)
	if err != nil {
		return planeError(err)
	}
	j.mu.Lock()
	fresh := c.Applied != j.applied
	j.applied = c.Applied
	j.number++
	j.mu.Unlock()
	if fresh {
		if j.frozen, err = j.plane.Swap(j.id); err != nil {
			return planeError(err)
		}
	}
	return j.send(stream)
}

// send sends the frozen bank, or an empty harvest if there is none.
func (j *job) send(stream harvestStream) error {
	chunk := &pb.HarvestChunk{Number: j.harvests()}
	if j.frozen != nil {
		for rank, sum := range j.frozen.Slots {
			if sum == 0 {
				continue
			}
			chunk.Ranks = append(chunk.Ranks, uint32(rank))
			chunk.Sums = append(chunk.Sums, sum)
			if len(chunk.Ranks) == chunkSums {
				if err := stream.Send(chunk); err != nil {
					return err
				}
				chunk = &pb.HarvestChunk{Number: chunk.Number}
			}
		}
		chunk.Frames, chunk.Pairs = j.frozen.Frames, j.frozen.Pairs
	}
	chunk.Last, chunk.Ticket = true, j.ticket
	return stream.Send(chunk)
}

// clear hands the acknowledged bank back.
func (j *job) clear() error {
	if j.frozen == nil {
		return nil
	}
	bank := j.frozen
	j.frozen = nil
	return j.plane.Clear(bank)
}

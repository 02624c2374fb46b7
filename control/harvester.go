// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// Harvest is the content of one frozen bank of a job.
type Harvest struct {
	Number uint64   // counts the harvests of the job's instance from 1
	Ranks  []uint32 // hot scalars with a nonzero sum
	Sums   []int64  // contents of their slots; aggregator.JobConfig.Units converts them
	Frames uint64   // hot frames that were summed
	Pairs  uint64   // pairs that were summed
	Chunks int      // messages that carried it
	Bytes  int      // of these
	// Request is the number of the newest request ([Harvester.Ask]) that was made before the bank was
	// frozen, or 0 if that is not known.
	Request uint64

	// Marks are those of the bank, as in aggregator.Bank, and the last ones of senders that were
	// withdrawn before: in the order of their numbers. They are nil if the bank is empty, or its
	// aggregator has none.
	Marks []aggregator.Mark
}

// Harvester collects the sums of one job from its aggregator.
type Harvester struct {
	job   *Owned
	apply func(*Harvest) error
	log   *slog.Logger
	delay pause // between the retries of Run

	mu       sync.Mutex
	stream   grpc.BidiStreamingClient[pb.HarvestRequest, pb.HarvestChunk]
	asked    uint64        // newest request
	answered uint64        // newest request whose harvest is applied
	last     uint64        // number of the newest harvest that is applied
	broken   uint64        // streams that Run has replaced by others
	progress chan struct{} // closed and replaced when answered or failed changes
	failed   error
	finished bool // Finish was called: no more harvests are needed

	slots   int  // of the job; 0: any number
	resumes bool // another harvester has the marks before its own

	marks []aggregator.Mark // of the newest harvest that has some and is applied; used by Run
}

// NewHarvester returns a harvester for a job. It passes each harvest to apply, one at a time, and
// only once if apply succeeds. The aggregator clears the bank when apply has returned.
func NewHarvester(job *Owned, apply func(*Harvest) error, log *slog.Logger) *Harvester {
	return &Harvester{job: job, apply: apply, log: cmp.Or(log, slog.Default()), progress: make(chan struct{})}
}

// ResumeAfter makes the first stream begin after a harvest that another harvester of the job has
// brought. Call it before Run.
func (h *Harvester) ResumeAfter(number uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last, h.resumes = number, true
}

// lastApplied returns the number of the newest harvest that is applied.
func (h *Harvester) lastApplied() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// brokenStreams returns how often Run has lost its stream to the aggregator.
func (h *Harvester) brokenStreams() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.broken
}

// Run receives harvests until ctx is done. It reconnects when the connection breaks or the
// aggregator is too busy to harvest, and returns an error when the aggregator refuses or apply
// fails.
func (h *Harvester) Run(ctx context.Context) error {
	h.mu.Lock()
	h.failed = nil
	h.mu.Unlock()
	for {
		err := h.session(ctx)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		} else if status.Code(err) == codes.Unavailable {
			h.log.Warn("lost the switch's harvest stream, connecting again", "error",
				access.CallError(access.SwitchDaemon, "harvest", err))
			h.mu.Lock()
			h.broken++
			h.mu.Unlock()
			if err = h.delay.waitPause(ctx); err == nil {
				continue
			}
		}
		h.mu.Lock()
		h.failed = err
		h.signal()
		h.mu.Unlock()
		return err
	}
}

func (h *Harvester) session(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := h.job.client.Harvest(ctx)
	if err != nil {
		return err
	}
	h.attach(stream)
	defer h.detach()
	var now Harvest
	for {
		chunk, err := stream.Recv()
		if err != nil {
			return err
		}
		h.delay.resetPause()
		if err := now.take(chunk); err != nil {
			return fmt.Errorf("harvest %d: %w", chunk.Number, err)
		}
		if h.slots > 0 && len(now.Sums) > h.slots {
			return fmt.Errorf("harvest %d contains more than the %d sums of job %d", chunk.Number, h.slots, h.job.ID)
		}
		now.Chunks++
		now.Bytes += proto.Size(chunk)
		if !chunk.Last {
			continue
		}
		now.Number, now.Frames, now.Pairs, now.Request = chunk.Number, chunk.Frames, chunk.Pairs, chunk.Request
		if err := now.checkMarks(h.marks); err != nil && (!h.resumes || h.marks != nil) {
			return fmt.Errorf("harvest %d: %w", now.Number, err)
		}
		if now.Marks != nil {
			now.keepMarks(h.marks)
		}
		if err := h.apply(&now); err != nil {
			return fmt.Errorf("harvest %d: %w", now.Number, err)
		}
		if now.Marks != nil {
			h.marks = now.Marks
		}
		h.acknowledge(now.Number, chunk.Request)
		now = Harvest{Ranks: now.Ranks[:0], Sums: now.Sums[:0]}
	}
}

// attach makes a stream the current one: it starts with the newest applied harvest and repeats an
// unanswered request. Recv reports a failure to send, with the reason.
func (h *Harvester) attach(stream grpc.BidiStreamingClient[pb.HarvestRequest, pb.HarvestChunk]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stream = stream
	_ = stream.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Begin{
		Begin: &pb.HarvestBegin{Job: uint32(h.job.ID), Key: h.job.Key, Last: h.last, Marks: true, Gaps: true},
	}})
	if h.asked > h.answered {
		_ = stream.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Now{Now: h.asked}})
	}
}

func (h *Harvester) detach() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stream = nil
}

func (h *Harvester) acknowledge(number, request uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = number
	_ = h.stream.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Done{Done: number}})
	if request > h.answered {
		h.answered = request
		h.signal()
	}
}

// signal wakes the callers that wait in Now. The caller holds the lock.
func (h *Harvester) signal() {
	close(h.progress)
	h.progress = make(chan struct{})
}

// Ask requests a harvest of everything that the aggregator has acknowledged so far, and returns the
// number of the request.
func (h *Harvester) Ask() (request uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ask()
}

// AskOnce is [Harvester.Ask], unless an earlier request is unanswered, whose harvest may not have
// everything.
func (h *Harvester) AskOnce() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked == h.answered {
		h.ask()
	}
}

// ask is Ask of a caller that holds the lock.
func (h *Harvester) ask() (request uint64) {
	h.asked++
	if h.stream != nil {
		// Recv reports an error too, and the next session repeats the request.
		_ = h.stream.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Now{Now: h.asked}})
	}
	return h.asked
}

// Now is [Harvester.Ask], and waits until the harvest is applied.
func (h *Harvester) Now(ctx context.Context) error {
	h.mu.Lock()
	request := h.ask()
	for h.answered < request && h.failed == nil && !h.finished {
		progress := h.progress
		h.mu.Unlock()
		select {
		case <-progress:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		h.mu.Lock()
	}
	defer h.mu.Unlock()
	if h.answered < request && !h.finished {
		return access.CallError(access.SwitchDaemon, "harvest", h.failed)
	}
	return nil
}

// Finish notes that all sums of the job are harvested, and that nothing is pushed to it any more.
// That answers all requests, also those that wait in Now. The caller ends Run after it.
func (h *Harvester) Finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.finished = true
	h.signal()
}

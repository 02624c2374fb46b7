package control

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// job is one job of an aggregator, with the state of its harvest.
type job struct {
	plane aggregator.Plane
	spec  *pb.JobSpec
	cfg   aggregator.JobConfig // complete

	instance uint64 // random, not 0

	// removed is closed when the job is to end: it ends the job's streams.
	removed chan struct{}
	end     sync.Once

	// admitting guards senders and gone. While it is held, the data plane's
	// job of this id is this one; a stream that outlives its job must not touch
	// its successor.
	admitting sync.Mutex
	senders   int // admitted now
	gone      bool

	// harvesting holds a token while a stream harvests.
	harvesting chan struct{}
	// frozen is the bank that the parameter server has not acknowledged. It
	// outlives a broken stream; harvesting guards it.
	frozen *aggregator.Bank
	ticket uint64 // newest request of the stream that is or was answered

	mu       sync.Mutex
	number   uint64    // of the latest harvest
	applied  uint64    // frames applied when the latest bank was frozen
	started  time.Time // when the latest harvest, or its stream, began
	first    bool      // the next harvest is the first of its stream
	interval timing    // between the starts of two harvests of a stream
	held     timing    // from a harvest's start until it was acknowledged
}

func newJob(plane aggregator.Plane, spec *pb.JobSpec, cfg aggregator.JobConfig) *job {
	return &job{plane: plane, spec: spec, cfg: cfg, instance: rand.Uint64() | 1, removed: make(chan struct{}), harvesting: make(chan struct{}, 1)}
}

func (j *job) harvests() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.number
}

// remove ends the job's streams and takes it from the data plane. It waits for
// the stream that harvests, which may be stuck in sending until its server reads
// or is gone; when ctx ends before, remove can be called again.
func (j *job) remove(ctx context.Context) error {
	j.end.Do(func() { close(j.removed) })
	select {
	case j.harvesting <- struct{}{}:
		defer func() { <-j.harvesting }()
	case <-ctx.Done():
		return status.Errorf(codes.DeadlineExceeded, "job %d: its parameter server does not take the harvest that is on its way; try again", j.cfg.ID)
	}
	j.frozen = nil
	j.admitting.Lock()
	defer j.admitting.Unlock()
	if j.gone {
		return status.Errorf(codes.NotFound, "no job %d", j.cfg.ID)
	}
	j.gone = true
	if err := j.plane.RemoveJob(j.cfg.ID); err != nil {
		return planeError(err)
	}
	return nil
}

// admit admits a sender.
func (j *job) admit(s aggregator.SenderConfig) error {
	j.admitting.Lock()
	defer j.admitting.Unlock()
	if j.gone {
		return status.Errorf(codes.Aborted, "job %d was removed", j.cfg.ID)
	}
	s.Epoch = j.cfg.Epoch
	if err := j.plane.AddSender(j.cfg.ID, s); err != nil {
		return planeError(err)
	}
	j.senders++
	return nil
}

// withdraw takes a sender's admission back.
func (j *job) withdraw(sender uint16, log *slog.Logger) {
	j.admitting.Lock()
	defer j.admitting.Unlock()
	if j.gone {
		return
	}
	j.senders--
	err := j.plane.RemoveSender(j.cfg.ID, sender)
	if err != nil && !errors.Is(err, aggregator.ErrClosed) {
		log.Warn("cannot withdraw a sender", "job", j.cfg.ID, "sender", sender, "error", err)
	}
}

func (j *job) admitted() int {
	j.admitting.Lock()
	defer j.admitting.Unlock()
	return j.senders
}

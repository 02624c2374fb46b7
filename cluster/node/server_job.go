// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
)

// startHarvests starts to receive harvests. Servers without harvests end their steps at the same
// rate, without barriers.
func (s *server) startHarvests(ctx context.Context, cancel context.CancelCauseFunc) {
	c := s.env.Config
	switch {
	case s.job != nil:
		s.runGeneration(cancel, s.generation.Load())
		s.ends.Go(func() { s.watchAggregator(ctx, cancel) })
	case !c.Job.Sync:
		go s.commitRegularly(ctx)
	}
}

// newHarvests prepares for harvests. The returned function makes the server apply everything that
// the aggregator has acknowledged.
func (s *server) newHarvests(ctx context.Context) (now func(context.Context) error) {
	if s.job != nil {
		s.prepareHarvests(ctx, s.generation.Load())
		s.store.BeginGeneration(listInstances(s.generation.Load().listShares())...)
	}
	return s.harvestNow
}

// prepareHarvests prepares for the harvests of a generation.
func (s *server) prepareHarvests(ctx context.Context, h *harvesting) {
	h.ctx, h.end = context.WithCancelCause(ctx)
	for _, one := range h.listShares() {
		s.prepareShare(ctx, h, one)
	}
}

// prepareShare prepares for the harvests of a share.
func (s *server) prepareShare(ctx context.Context, h *harvesting, one *openShare) {
	one.ctx, one.end = context.WithCancel(h.ctx)
	one.Harvester = control.NewHarvester(one.job,
		func(sums *control.Harvest) error { return s.applyHarvest(ctx, one, sums) }, s.env.Log.With("control", one.control))
}

// jobSpec returns the job's specification for the aggregator.
func jobSpec(c *cluster.Config, hot *packer.HotSet) (*pb.JobSpec, error) {
	fingerprint := hot.Fingerprint()
	spec := &pb.JobSpec{
		Job:        uint32(c.Job.ID),
		Mode:       pb.Mode_MODE_COMBINE,
		Arithmetic: control.ArithmeticMessage(c.Job.Config().Arithmetic),
		Exponent:   proto.Int32(int32(c.Job.Config().Exp)), // of lut, 0
		Slots:      uint32(hot.Slots()),
		HotSet:     fingerprint[:],
		Senders:    uint32(len(c.Workers)),
	}
	if !c.Job.Sync && !c.Job.HasShares() { // whose harvests the server times
		spec.HarvestPeriodUs = uint32(c.Job.Harvest / time.Microsecond)
		spec.HarvestFrames = c.Job.HarvestFrames
	}
	mac, err := frameMAC(c, c.Server.Host)
	if mac != nil {
		spec.ServerMacs = [][]byte{mac}
	}
	return spec, err
}

// removeJob frees the job's slots. It has its own time limit, because the run's context may have
// ended. An unreachable aggregator is no failure of the training: it ends the job with its lease.
func (s *server) removeJob() error {
	h := s.generation.Load()
	if h.isFenced() { // it has ended, or ends with its lease
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	err := removeShares(ctx, h.listShares())
	if err != nil && ctx.Err() != nil {
		s.env.Log.Warn("the job was not removed; it ends with its lease", "job", s.job.ID, "lease",
			time.Duration(s.job.LeaseMs)*time.Millisecond, "error", err)
		return nil
	}
	return err
}

// applyHarvest adds a harvest of a share to the open step. Without barriers it also ends the step,
// unless there are several shares.
func (s *server) applyHarvest(ctx context.Context, of *openShare, h *control.Harvest) (err error) {
	defer func() {
		if errors.Is(err, ps.ErrOverflow) {
			s.keepGood("the sums of a harvest became too large", "lower model.learning_rate")
		}
	}()
	if err := toUnits(h, s.env.Config.Job.Config(), s.store.Config().Exp); err != nil {
		return err
	}
	if err := of.toHotSet(h); err != nil {
		return err
	}
	var failed error
	err = s.loop.Do(ctx, func() {
		var fresh bool
		s.loop.Recorder().AddSums(func() {
			fresh, failed = s.store.ApplyHarvest(ps.Harvest{Instance: of.job.Instance, Number: h.Number, Ranks: h.Ranks,
				Sums: h.Sums}, s.keys)
		})
		if failed != nil {
			return
		}
		s.service.Applied(h.Marks)
		if fresh && h.Frames > 0 {
			s.result.Harvests++
			s.result.HarvestMessages += uint64(h.Chunks)
			s.result.HarvestBytes += uint64(h.Bytes)
			s.result.HotFrames += h.Frames
			s.result.HotPairs += h.Pairs
		}
		switch {
		case s.env.Config.Job.Sync:
		case s.timed != nil:
			s.timed.noteHarvest(of.job.Instance, h.Request)
			s.endAnswered()
		default:
			s.commitStep()
			s.progress.settleReports()
		}
	})
	return errors.Join(err, failed)
}

// toUnits converts the sums of a harvest from the job's arithmetic to units of 2^exp.
func toUnits(h *control.Harvest, job aggregator.JobConfig, exp int) error {
	if job.Arithmetic == aggregator.Exact && job.Exp == exp {
		return nil
	}
	for i, sum := range h.Sums {
		units, ok := job.Units(sum, exp)
		if !ok {
			return fmt.Errorf("sum %g of rank %d: %w", job.Float32(sum), h.Ranks[i], ps.ErrOverflow)
		}
		h.Sums[i] = units
	}
	return nil
}

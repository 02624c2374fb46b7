// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// serviceConfig returns the control service's callbacks into the server. harvest applies everything
// that the aggregator has acknowledged.
func (s *server) serviceConfig(ctx context.Context, dim int,
	harvest func(context.Context) error) control.ParameterServerConfig {
	c, fingerprint := s.env.Config, s.hot.Fingerprint()
	agree := map[string]string{}
	maps.Copy(agree, s.agreement)
	if s.hasSeveral() {
		agree[control.IndexField] = strconv.Itoa(s.env.Server)
	}
	services := control.ParameterServerConfig{
		Job: c.Job.ID, Instance: s.jobInstance(), Shares: s.moreInstances(), Plan: s.planFor(),
		Sync: c.Job.Sync, Port: c.Port, Dimension: dim,
		HotSet: fingerprint[:], Workers: c.WorkerIDs(), Members: s.loop, Agree: agree, FirstStep: s.progress.firstStep,
		Aggregator: s.aggregatorIndex(), KeepLog: s.keepsLogs(), Settled: s.loop.TakeSteps,
		Report: func(ctx context.Context, sender uint16, r *pb.ReportRequest) error {
			if !c.Job.Sync { // where a barrier precedes it
				if err := s.progress.addReport(sender, r.Steps, r.Instance); err != nil {
					return err
				}
				s.saveFirst()
				err := harvest(ctx)
				if err == nil {
					err = s.progress.checkGeneration(r.Instance) // what was reported may not be part of the weights
				}
				if err != nil {
					return err
				}
			}
			return s.evaluator.epochReached(ctx, sender, int(r.Epochs), r.Ends)
		},
		Rejoin: c.Server.Rejoin,
		Diverged: func(worker uint16) {
			s.keepGood(fmt.Sprintf("the gradients of worker %d became too large", worker), "do what the worker's error says")
		},
		Lost: func(uint16) {
			// Errors end the server, which also writes a checkpoint.
			if c.Job.Sync {
				_ = s.loop.Do(ctx, func() { s.loop.RefuseSteps(false) }) // the service knows who is lost
			} else { // acknowledged pushes of the worker belong into the checkpoint
				_ = harvest(ctx)
			}
			s.saveSoon()
		},
		Away: func(ctx context.Context, _ uint16) error {
			if c.Job.Sync { // where only whole steps count
				return nil
			}
			s.saveSoon()
			return harvest(ctx)
		},
		Commit: func(ctx context.Context, step uint64) error {
			if err := harvest(ctx); err != nil {
				return err
			}
			return s.commitSync(ctx, step)
		},
		Stats:  s.serverStats,
		Random: s.env.Machine.Random,
		Log:    s.env.Log,
	}
	if s.job != nil {
		services.Drain = func(call context.Context, req *pb.DrainRequest) (*pb.DrainResponse, error) {
			return s.drainJob(call, ctx, req)
		}
	}
	if s.plan.Load() != nil {
		services.ChangePlan = func(call context.Context, req *pb.ChangePlanRequest) (*pb.ChangePlanResponse, error) {
			return s.applyPlan(call, ctx, req)
		}
	}
	if c.Job.Sync && s.keepsLogs() && !s.hasSeveral() {
		services.Rewind = s.rewindStep
	}
	if s.savesSteps() && c.Server.Checkpoint != "" {
		services.Checkpoints = s.startSteps()
	}
	if c.Job.Sync { // otherwise the harvests end steps
		s.addSums(ctx, &services, harvest)
	}
	return services
}

// addSums adds the callbacks that end steps with their sums, or without.
func (s *server) addSums(ctx context.Context, services *control.ParameterServerConfig,
	harvest func(context.Context) error) {
	harvestUnless := func(ctx context.Context, quiet bool) error {
		if quiet { // a harvest would be empty
			return nil
		}
		return harvest(ctx)
	}
	services.Reduce = func(ctx context.Context, step uint64, quiet bool) (sums control.Sums, err error) {
		if err := harvestUnless(ctx, quiet); err != nil {
			return sums, err
		}
		var dropped *control.DroppedError
		err = s.endStep(ctx, step, func() {
			if sums, dropped = s.stepSums(); dropped == nil {
				s.commitStep()
			} else {
				s.store.Drop()
			}
		})
		if err == nil && dropped != nil {
			err = dropped
		}
		return sums, err
	}
	services.ReduceHere = func(step uint64, over func(control.Sums, *control.DroppedError)) {
		sums, dropped := s.stepSums()
		over(sums, dropped)
		if dropped == nil {
			s.loop.GiveSums(step, sums.Keys, sums.Rows) // before the commit, for which they need not wait
			s.commitStep()
		} else {
			s.loop.RefuseSteps(false) // the service has the reason
			s.store.Drop()
		}
		s.store.MakeRoom()
		s.progress.commitSteps(step + 1)
		s.saveAfter(step)
	}
	services.Give = func(step uint64, sums control.Sums, ok bool) {
		_ = s.loop.Do(ctx, func() { // or the loop has ended
			if ok {
				s.loop.GiveSums(step, sums.Keys, sums.Rows)
			} else {
				s.loop.RefuseSteps(false)
			}
		})
	}
	services.Drop = func(ctx context.Context, step uint64, quiet bool) error {
		if err := harvestUnless(ctx, quiet); err != nil { // the aggregator's part of it
			return err
		}
		return s.endStep(ctx, step, s.store.Drop)
	}
}

// stepSums returns the sums of the open step, or why there are none.
func (s *server) stepSums() (sums control.Sums, dropped *control.DroppedError) {
	var large *ps.SumError
	keys, rows, err := s.store.AppendSums(nil, nil)
	if errors.As(err, &large) {
		return sums, &control.DroppedError{Key: large.Key, KeyKnown: true, Sum: true}
	}
	return control.Sums{Keys: keys, Rows: rows}, nil
}

// commitSync ends a step of synchronous training.
func (s *server) commitSync(ctx context.Context, step uint64) error {
	return s.endStep(ctx, step, s.commitStep)
}

// endStep ends a step by a call in the store's goroutine.
func (s *server) endStep(ctx context.Context, step uint64, call func()) error {
	var stopped error
	err := s.loop.Do(ctx, func() {
		if stopped = context.Cause(ctx); errors.Is(stopped, control.ErrFenced) {
			return // the workers have to arrive again
		}
		call()
		s.progress.commitSteps(step + 1)
	})
	switch {
	case errors.Is(stopped, control.ErrFenced):
		return stopped
	case err != nil:
		if errors.Is(context.Cause(ctx), control.ErrFenced) {
			return control.ErrFenced
		}
	case !s.savesSteps():
		s.saveAfter(step)
	case s.checkpointAfter(step):
		s.saveStep(ctx)
	}
	return err
}

func (s *server) commitStep() {
	s.version++
	if s.store.Commit() > 0 {
		s.result.Steps++
	}
}

func (s *server) serverStats(ctx context.Context) (*pb.ServerStats, error) {
	var out pb.ServerStats
	err := s.loop.Do(ctx, func() {
		out.Rows, out.Steps, out.Harvests = uint64(s.store.Len()), s.result.Steps, s.result.Harvests
		out.Counters = map[string]uint64{
			"hot_frames": s.result.HotFrames, "hot_pairs": s.result.HotPairs, "harvest_messages": s.result.HarvestMessages,
			"harvest_bytes": s.result.HarvestBytes,
		}
	})
	if now := s.plan.Load(); now != nil {
		out.Counters["plan_version"] = now.version
	}
	var stats transport.ServerStats
	if err == nil {
		stats, err = s.loop.Stats(ctx)
	}
	if err != nil {
		return nil, err
	}
	out.Counters["cold_frames"] = stats.Applied
	out.Counters["coded_frames"], out.Counters["coded_pairs"] = stats.Coded, stats.CodedValues
	out.Counters["coded_bytes"] = stats.CodedBytes
	out.Counters["coded_saved_bytes"] = uint64(max(0, 4*int64(stats.CodedValues)-int64(stats.CodedBytes)))
	out.Counters["step_frames"], out.Counters["sums_frames"] = stats.Steps, stats.Sums
	out.Counters["overrun"], out.Counters["lost_answers"] = stats.Link.Overrun, stats.Link.NoRoom
	out.Latencies = control.LatencyMessages(s.loop.Recorder().Series())
	return &out, nil
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// ServerResult is what a parameter server did.
type ServerResult struct {
	WeightsSHA256 string `json:"weights_sha256"`
	Rows          int    `json:"rows"`
	Steps         uint64 `json:"steps"`    // commits
	Harvests      uint64 `json:"harvests"` // that held sums
	// HarvestMessages is how many messages carried the harvested sums.
	HarvestMessages uint64 `json:"harvest_messages"`
	// HotFrames and HotPairs were summed by the aggregator; the server saw the
	// sums only.
	HotFrames uint64 `json:"hot_frames"`
	HotPairs  uint64 `json:"hot_pairs"`
	// ColdFrames were received from the workers.
	ColdFrames uint64 `json:"cold_frames"`
	// Overrun frames found no receive buffer; LostAnswers no transmit buffer.
	// Their senders repeat them.
	Overrun     uint64 `json:"overrun"`
	LostAnswers uint64 `json:"lost_answers"`
	// Evaluations are those of data.test after each epoch.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
}

// server is the state of RunServer.
type server struct {
	env   Env
	hot   *packer.HotSet
	keys  []uint64 // of the hot rows, by rank
	store *ps.Store
	loop  *transport.Server
	// arrive is told by the loop's goroutine of the ends of steps whose sums workers get in frames. It is set before
	// workers are admitted.
	arrive func(sender, epoch uint16, end wire.StepEnd) bool
	// endCapture ends what offerCapture began.
	endCapture func() error
	job        *control.Owned // of server 0, nil at the others

	// agreement is what workers must agree on with this server.
	agreement map[string]string
	progress  *progress
	evaluator *evaluator
	restored  fs.FileInfo   // the checkpoint that was read, nil if there was none
	due       chan struct{} // holds a token when a checkpoint is due, but not by time
	saving    sync.Mutex    // held while a checkpoint is written
	saved     uint64        // version of the last checkpoint

	// Written by the loop's goroutine only.
	result  ServerResult
	version uint64 // counts commits
}

// RunServer runs a parameter server until every worker has finished; then it
// applies what is left and returns. However it ends, it leaves a checkpoint of the
// last commit.
//
// Of several servers the one with index 0 creates the job and harvests; the others only hold their rows.
func RunServer(ctx context.Context, env Env) (result *ServerResult, err error) {
	c, err := env.Config.ForServer(env.Server)
	if err != nil {
		return nil, err
	}
	env.Config = c
	cfg, err := StoreConfig(c)
	if err != nil {
		return nil, err
	}
	s := &server{env: env, due: make(chan struct{}, 1)}
	if err := s.checkStep(); err != nil {
		return nil, err
	}
	if s.hot, err = loadHotSet(c, cfg.Dim); err != nil {
		return nil, err
	}
	for r := range uint32(s.hot.Len()) {
		s.keys = append(s.keys, s.hot.Key(r))
	}
	if s.evaluator, err = newEvaluator(env); err != nil {
		return nil, err
	}
	if err := s.open(cfg); err != nil {
		return nil, err
	}
	security, err := control.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, err
	}
	listener, err := env.Machine.listen(ctx, s.field()+".control", c.Server.Control)
	if err != nil {
		return nil, err
	}
	defer listener.Close()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if env.Server == 0 {
		conn, err := control.Dial(ctx, control.TheAggregator(), c.Switch.Control, security, startLimit, env.Log, env.Machine.Client...)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		if err := s.createJob(ctx, pb.NewAggregatorClient(conn)); err != nil {
			return nil, err
		}
		defer func() {
			// After another error the job may be gone already.
			if failed := s.removeJob(); err == nil {
				err = failed
			}
		}()
		// Until the last checkpoint is written: the next server waits for that.
		holding, release := context.WithCancel(context.WithoutCancel(ctx))
		defer release()
		if err := s.job.Hold(holding, cancel); err != nil {
			return nil, err
		}
	}
	releaseCheckpoint, err := s.takeOver(cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, releaseCheckpoint()) }()

	if env.Machine.Store != nil {
		env.Machine.Store(s.store)
	}
	if err := s.startLoop(cfg.Dim); err != nil {
		return nil, err
	}
	s.evaluator.start(s)
	defer s.evaluator.busy.Wait()
	var saving sync.WaitGroup
	defer func() {
		cancel(nil)
		err = errors.Join(err, s.loop.Close())
		err = errors.Join(err, s.endCapture())
		saving.Wait()
		err = errors.Join(err, s.saveAtEnd())
	}()

	go func() { <-s.loop.Done(); cancel(s.loop.Err()) }()
	harvest := s.startHarvests(ctx, cancel)

	fingerprint := s.hot.Fingerprint()
	services := control.ParameterServerConfig{
		Job: c.Job.ID, Instance: s.instance(), Sync: c.Job.Sync, Port: c.Port, Dimension: cfg.Dim, HotSet: fingerprint[:], Workers: c.WorkerIDs(),
		Members: s.loop, Agree: s.agreement, FirstStep: s.progress.first,
		Report: func(ctx context.Context, sender uint16, r *pb.ReportRequest) error {
			if !c.Job.Sync { // where a barrier has come before
				s.progress.report(sender, r.Steps)
				if err := harvest(ctx); err != nil {
					return err
				}
			}
			return s.evaluator.reached(ctx, sender, int(r.Epochs), r.Ends)
		},
		Rejoin: c.Server.Rejoin,
		Lost: func(uint16) {
			// Errors end the server, which writes a checkpoint too.
			if c.Job.Sync {
				_ = s.loop.Do(ctx, s.loop.RefuseSteps) // the service knows who is lost
			} else { // what the worker was acknowledged belongs into the checkpoint
				_ = harvest(ctx)
			}
			s.saveSoon()
		},
		Commit: func(ctx context.Context, step uint64) error {
			if err := harvest(ctx); err != nil {
				return err
			}
			return s.commit(ctx, step)
		},
		Stats:  s.stats,
		Random: env.Machine.Random,
		Log:    env.Log,
	}
	if c.Job.Sync { // otherwise the harvests end steps
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
			err = s.end(ctx, step, func() {
				sums.Keys, sums.Rows = s.store.AppendSums(nil, nil)
				s.commitStep()
			})
			return sums, err
		}
		services.ReduceHere = func(step uint64, over func(control.Sums)) {
			var sums control.Sums
			sums.Keys, sums.Rows = s.store.AppendSums(nil, nil)
			over(sums)
			s.loop.GiveSums(step, sums.Keys, sums.Rows) // before the commit, which they need not wait for
			s.commitStep()
			s.progress.commit(step + 1)
			s.saveAfter(step)
		}
		services.Give = func(step uint64, sums control.Sums, ok bool) {
			_ = s.loop.Do(ctx, func() { // or the loop has ended
				if ok {
					s.loop.GiveSums(step, sums.Keys, sums.Rows)
				} else {
					s.loop.RefuseSteps()
				}
			})
		}
		services.Drop = func(ctx context.Context, step uint64, quiet bool) error {
			if err := harvestUnless(ctx, quiet); err != nil { // what the aggregator has of it
				return err
			}
			return s.end(ctx, step, s.store.Drop)
		}
	}
	service := control.NewParameterServer(ctx, services)
	s.progress.agreed = service.Agreed
	if c.Job.Sync && !s.several() {
		s.arrive = func(sender, epoch uint16, end wire.StepEnd) bool {
			return service.Arrive(sender, epoch, end.Step, control.HotFrames{Sent: end.HotSent, Answered: end.HotAnswered})
		}
	}
	if !s.savesSteps() {
		saving.Go(func() { s.saveRegularly(ctx) })
	}
	grpcServer := control.NewServer(security, env.Machine.Server...)
	pb.RegisterParameterServerServer(grpcServer, service)
	go func() { cancel(fmt.Errorf("control service: %w", grpcServer.Serve(listener))) }()
	defer service.Close()
	defer stopServer(grpcServer, func() { cancel(nil) })

	env.Log.Info(s.name()+" serves", "backend", c.Backend, "address", c.Server.Address, "port", c.Port, "control", listener.Addr())
	env.ready()
	if err := service.Wait(ctx); err != nil {
		return nil, err
	}
	return s.finish(ctx, harvest)
}

// several reports whether the job has servers beside this one.
func (s *server) several() bool { return len(s.env.Config.Servers) > 1 }

// name is what messages call the server.
func (s *server) name() string {
	if s.several() {
		return fmt.Sprintf("parameter server %d", s.env.Server)
	}
	return "parameter server"
}

// field is the server's in the cluster file.
func (s *server) field() string {
	if len(s.env.Config.Servers) > 0 {
		return fmt.Sprintf("servers[%d]", s.env.Server)
	}
	return "server"
}

// instance is the job's, 0 at servers that have not created it.
func (s *server) instance() uint64 {
	if s.job == nil {
		return 0
	}
	return s.job.Instance
}

// startHarvests begins to take harvests. The function that it returns has everything applied that the aggregator has
// acknowledged. Servers that get no harvests end their steps as often as these would, without barriers.
func (s *server) startHarvests(ctx context.Context, cancel context.CancelCauseFunc) (now func(context.Context) error) {
	c := s.env.Config
	if s.job != nil {
		harvester := control.NewHarvester(s.job, func(h *control.Harvest) error { return s.apply(ctx, h) }, s.env.Log.With("control", c.Switch.Control))
		go func() { cancel(s.job.Lost("harvest", harvester.Run(ctx))) }()
		return harvester.Now
	}
	if c.Job.Sync {
		return func(context.Context) error { return nil }
	}
	now = func(ctx context.Context) error {
		return s.loop.Do(ctx, func() {
			s.commitStep()
			s.progress.settle()
		})
	}
	go func() {
		for tick := time.Tick(c.Job.Harvest); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
			}
			if now(ctx) != nil {
				return // the loop has ended, which cancels ctx
			}
		}
	}()
	return now
}

func (s *server) createJob(ctx context.Context, aggregator pb.AggregatorClient) error {
	spec, err := jobSpec(s.env.Config, s.hot)
	if err != nil {
		return err
	}
	s.job, err = control.CreateJob(ctx, aggregator, spec, startLimit, s.env.Log)
	return err
}

// jobSpec returns what the aggregator is to be told of the job.
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
	if !c.Job.Sync {
		spec.HarvestPeriodUs = uint32(c.Job.Harvest / time.Microsecond)
		spec.HarvestFrames = c.Job.HarvestFrames
	}
	mac, err := frameMAC(c, c.Server.Host)
	spec.ServerMac = mac
	return spec, err
}

// removeJob frees the job's slots. It has its own time limit, because the run's
// context may have ended. An aggregator that cannot be reached is no failure of the
// training: it ends the job with its lease.
func (s *server) removeJob() error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	err := s.job.Remove(ctx)
	if err != nil && ctx.Err() != nil {
		s.env.Log.Warn("the job was not removed; it ends with its lease", "job", s.job.ID, "lease", time.Duration(s.job.LeaseMs)*time.Millisecond, "error", err)
		return nil
	}
	return err
}

// apply adds a harvest to the open step. Without barriers a harvest also ends
// the step.
func (s *server) apply(ctx context.Context, h *control.Harvest) error {
	if err := toUnits(h, s.env.Config.Job.Config(), s.store.Config().Exp); err != nil {
		return err
	}
	var failed error
	err := s.loop.Do(ctx, func() {
		fresh, err := s.store.ApplyHarvest(ps.Harvest{Instance: s.job.Instance, Number: h.Number, Ranks: h.Ranks, Sums: h.Sums}, s.keys)
		if err != nil {
			failed = err
			return
		}
		if fresh && h.Frames > 0 {
			s.result.Harvests++
			s.result.HarvestMessages += uint64(h.Chunks)
			s.result.HotFrames += h.Frames
			s.result.HotPairs += h.Pairs
		}
		if !s.env.Config.Job.Sync {
			s.commitStep()
			s.progress.settle()
		}
	})
	return errors.Join(err, failed)
}

// toUnits converts the sums of a harvest from the job's arithmetic into units of
// 2^exp.
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

// commit ends a step of synchronous training.
func (s *server) commit(ctx context.Context, step uint64) error {
	return s.end(ctx, step, s.commitStep)
}

// end ends a step by a call in the store's goroutine.
func (s *server) end(ctx context.Context, step uint64, call func()) error {
	err := s.loop.Do(ctx, func() {
		call()
		s.progress.commit(step + 1)
	})
	switch {
	case err != nil:
	case !s.savesSteps():
		s.saveAfter(step)
	case s.checkpointAfter(step):
		s.saveStep(ctx)
	}
	return err
}

// checkpointAfter reports whether a checkpoint is due after a step.
func (s *server) checkpointAfter(step uint64) bool {
	every := s.env.Config.Server.CheckpointSteps
	return every > 0 && (step+1)%every == 0
}

// saveAfter makes a checkpoint due if one is after a step.
func (s *server) saveAfter(step uint64) {
	if s.checkpointAfter(step) {
		s.saveSoon()
	}
}

// saveSoon makes a checkpoint due.
func (s *server) saveSoon() {
	select {
	case s.due <- struct{}{}:
	default: // one is due already
	}
}

func (s *server) commitStep() {
	s.version++
	if s.store.Commit() > 0 {
		s.result.Steps++
	}
}

// finish applies what is left after the last worker has finished. The checkpoint
// follows when the endpoint is closed.
func (s *server) finish(ctx context.Context, harvest func(context.Context) error) (*ServerResult, error) {
	if err := harvest(ctx); err != nil {
		return nil, err
	}
	err := s.loop.Do(ctx, func() {
		s.commitStep()
		s.progress.finish(s.env.Config.Model.Epochs)
		hash := s.store.Hash()
		s.result.WeightsSHA256 = hex.EncodeToString(hash[:])
		s.result.Rows = s.store.Len()
	})
	if err != nil {
		return nil, err
	}
	stats, err := s.loop.Stats(ctx)
	if err != nil {
		return nil, err
	}
	s.result.ColdFrames = stats.Applied
	s.evaluator.busy.Wait()
	s.result.Evaluations = s.progress.allEvaluations()
	s.result.Overrun, s.result.LostAnswers = stats.Link.Overrun, stats.Link.NoRoom
	return &s.result, nil
}

func (s *server) stats(ctx context.Context) (*pb.ServerStats, error) {
	var out pb.ServerStats
	err := s.loop.Do(ctx, func() {
		out.Rows, out.Steps, out.Harvests = uint64(s.store.Len()), s.result.Steps, s.result.Harvests
		out.Counters = map[string]uint64{
			"hot_frames": s.result.HotFrames, "hot_pairs": s.result.HotPairs, "harvest_messages": s.result.HarvestMessages,
		}
	})
	if err != nil {
		return nil, err
	}
	stats, err := s.loop.Stats(ctx)
	if err != nil {
		return nil, err
	}
	out.Counters["cold_frames"] = stats.Applied
	out.Counters["overrun"], out.Counters["lost_answers"] = stats.Link.Overrun, stats.Link.NoRoom
	return &out, nil
}

// startLoop opens the server's link and endpoint.
func (s *server) startLoop(dim int) error {
	c := s.env.Config
	link, err := openLink(s.env, c.Server.Host, false)
	if err != nil {
		return err
	}
	process := "ps"
	if s.several() {
		process = fmt.Sprint("ps ", s.env.Server)
	}
	if s.endCapture, err = offerCapture(s.env, link, process, c.Server.Host); err != nil {
		return errors.Join(err, link.Close())
	}
	s.loop, err = transport.NewServer(transport.ServerConfig{
		Link: link, Job: c.Job.ID, Dim: dim, Handler: s.store,
		Arrive: func(sender, epoch uint16, end wire.StepEnd) bool {
			return s.arrive != nil && s.arrive(sender, epoch, end)
		},
	})
	if err != nil {
		err = errors.Join(err, link.Close())
		return errors.Join(err, s.endCapture())
	}
	return nil
}

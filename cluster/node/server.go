// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/telemetry"
	"github.com/libra-ina/libra/transport"
	"github.com/libra-ina/libra/wire"
)

// ServerResult is the result of a parameter server.
type ServerResult struct {
	WeightsSHA256 string `json:"weights_sha256"` // "" without an optimiser, and no rows
	Rows          int    `json:"rows"`
	Steps         uint64 `json:"steps"`    // commits
	Harvests      uint64 `json:"harvests"` // harvests with sums
	// HarvestMessages is the number of messages that carried the harvested sums.
	HarvestMessages uint64 `json:"harvest_messages"`
	HarvestBytes    uint64 `json:"harvest_bytes"` // of these messages
	// HotFrames and HotPairs were summed by the aggregator; the server received only the sums.
	HotFrames uint64 `json:"hot_frames"`
	HotPairs  uint64 `json:"hot_pairs"`
	// ColdFrames were received from the workers.
	ColdFrames uint64 `json:"cold_frames"`
	// Shares is the number of jobs of the hot set at switches; 0 at servers from index 1 on.
	Shares int `json:"shares"`
	// Overrun frames found no receive buffer; LostAnswers no transmit buffer. Their senders
	// retransmit them.
	Overrun     uint64 `json:"overrun"`
	LostAnswers uint64 `json:"lost_answers"`
	// Evaluations are those of data.test after each epoch.
	Evaluations []Evaluation `json:"evaluations,omitempty"`
	// Latencies are the times of drawn frames.
	Latencies []telemetry.Summary `json:"latencies,omitempty"`
}

// server is the state of RunServer.
type server struct {
	env    Env
	hot    *packer.HotSet
	keys   []uint64 // of the hot rows, by rank
	shares allotment
	timed  *timedSteps // nil: steps do not end so
	store  *ps.Store
	loop   *transport.Server
	// arrive is called by the loop's goroutine at the ends of steps whose sums workers get in
	// frames. It is set before workers are admitted.
	arrive func(sender, epoch uint16, end wire.StepEnd) bool
	// endCapture ends the capture of offerCapture.
	endCapture func() error
	job        *control.Owned // as server 0 has created it first, nil at the others
	generation atomic.Pointer[harvesting]
	moves      chan *move               // requests to leave the aggregator
	plan       atomic.Pointer[followed] // nil: the job follows none
	changing   chan struct{}            // holds a token while the plan changes
	end        context.CancelCauseFunc  // ends the server
	// Of watchAggregator: by index, the aggregator that was drained last, with the run of its daemon,
	// until another one has the job; and those that the job has left because they dropped frames.
	drained   map[int]uint64
	evacuated map[int]bool
	security  access.Security
	service   *control.ParameterServer
	ends      sync.WaitGroup // of what belongs to generations

	// agreement contains the values on which workers must agree with this server.
	agreement map[string]string
	progress  *progress
	evaluator *evaluator
	restored  fs.FileInfo   // the checkpoint that was read, or nil
	due       chan struct{} // holds a token when a checkpoint is due for a reason other than time
	saving    sync.Mutex    // held while a checkpoint is written
	saved     uint64        // version of the last checkpoint
	first     sync.Once     // the first checkpoint is due
	diverged  atomic.Bool   // the training has diverged: the checkpoint is kept as it is

	// Written only by the loop's goroutine.
	result  ServerResult
	version uint64 // counts commits
}

// RunServer runs a parameter server until every worker has finished; then it applies the rest and
// returns. However it ends, it leaves a checkpoint of the last commit.
//
// If there are several servers, the one with index 0 creates the job and harvests; the others only
// hold their rows.
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
	s := &server{env: env, due: make(chan struct{}, 1), moves: make(chan *move), drained: map[int]uint64{},
		evacuated: map[int]bool{}, changing: make(chan struct{}, 1)}
	if err := s.checkStep(); err != nil {
		return nil, err
	}
	if s.hot, err = loadHotSet(c, cfg.Dim); err != nil {
		return nil, err
	}
	if s.shares, err = allot(c, s.hot, env.Server == 0); err != nil {
		return nil, err
	}
	if s.shares.at != nil {
		own := *c
		own.Switch = s.shares.at[0].Switch // of the first share, as if it were the only one
		s.env.Config = &own
		env.Log.Info("the hot set is divided among switches", "switches", s.shares.by.Switches, "slots", s.shares.AllSlots())
	}
	if s.shares.Division != nil && !c.Job.Sync {
		s.timed = newTimedSteps()
	}
	for r := range uint32(s.hot.Len()) {
		s.keys = append(s.keys, s.hot.Key(r))
	}
	if s.evaluator, err = newEvaluator(env); err != nil {
		return nil, err
	}
	if err := s.openStore(cfg); err != nil {
		return nil, err
	}
	s.security, err = access.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, err
	}
	listener, err := env.Machine.listen(ctx, s.configField()+".control", c.Server.Control)
	if err != nil {
		return nil, err
	}
	defer listener.Close()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.end = cancel
	if env.Server == 0 {
		if err := s.openFirst(ctx); err != nil {
			return nil, err
		}
		s.followFirstPlan()
		defer func() { s.generation.Load().closeStreams() }()
		defer func() {
			s.ends.Wait()
			// After another error the job may already be gone. That an operator removed it may be
			// told later than what his workers did then.
			switch failed := s.removeJob(); {
			case err == nil:
				err = failed
			case errors.Is(failed, control.ErrRemoved) && !errors.Is(err, control.ErrRemoved):
				err = fmt.Errorf("%w: %w", failed, err)
			}
		}()
	}
	releaseCheckpoint, err := s.takeCheckpoint(cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, releaseCheckpoint()) }()

	if env.Machine.Store != nil {
		env.Machine.Store(s.store)
	}
	harvest := s.newHarvests(ctx)
	if err := s.startLoop(ctx, cfg.Dim); err != nil {
		return nil, err
	}
	s.evaluator.startWith(s)
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
	service := control.NewParameterServer(ctx, s.serviceConfig(ctx, cfg.Dim, harvest))
	s.service = service
	s.startHarvests(ctx, cancel)
	s.progress.agreed = service.Agreed
	if c.Job.Sync && !s.hasSeveral() {
		s.arrive = func(sender, epoch uint16, end wire.StepEnd) bool {
			return service.Arrive(sender, epoch, end.Step, control.HotFrames{Sent: end.HotSent, Answered: end.HotAnswered})
		}
	}
	if !s.savesSteps() {
		saving.Go(func() { s.saveRegularly(ctx) })
	}
	grpcServer := access.NewServer(s.security, env.Machine.Server...)
	pb.RegisterParameterServerServer(grpcServer, service)
	go func() { cancel(fmt.Errorf("control service: %w", grpcServer.Serve(listener))) }()
	defer service.Close()
	defer stopServer(grpcServer, func() { cancel(nil) })
	defer func() { service.End(s.withDivergence(err)) }()
	if env.Server > 0 {
		go s.followFirst(ctx, cancel, service, s.security)
	}

	shown := s.showServer(s.processName())
	defer shown.Close()

	env.Log.Info(s.logName()+" serves", "backend", c.Backend, "address", c.Server.Address, "port", c.Port,
		"control", listener.Addr())
	env.ready()
	if err := service.Wait(ctx); err != nil {
		return nil, err
	}
	return s.finishJob(ctx, harvest, service.IsTorn())
}

// hasSeveral reports whether the job has several servers.
func (s *server) hasSeveral() bool { return len(s.env.Config.Servers) > 1 }

// hasWeights reports whether the job has weights, and not only the sums of its steps.
func (s *server) hasWeights() bool { return s.store.Config().Optimizer.Method != ps.None }

// logName returns the server's name in messages.
func (s *server) logName() string {
	if s.hasSeveral() {
		return fmt.Sprintf("parameter server %d", s.env.Server)
	}
	return "parameter server"
}

// processName returns the server's name among the processes of the cluster.
func (s *server) processName() string {
	if s.hasSeveral() {
		return fmt.Sprint("ps ", s.env.Server)
	}
	return "ps"
}

// configField returns the server's field in the cluster file.
func (s *server) configField() string {
	if len(s.env.Config.Servers) > 0 {
		return fmt.Sprintf("servers[%d]", s.env.Server)
	}
	return "server"
}

// jobInstance returns the job's instance, 0 at servers that have not created it.
func (s *server) jobInstance() uint64 {
	if s.job == nil {
		return 0
	}
	return s.job.Instance
}

// aggregatorIndex returns the index of the aggregator of the job.
func (s *server) aggregatorIndex() int {
	if h := s.generation.Load(); h != nil {
		return h.at
	}
	return 0
}

// finishJob applies the rest after the last worker has finished, unless it is a part of a step that
// is torn. The checkpoint is written after the endpoint is closed.
func (s *server) finishJob(ctx context.Context, harvest func(context.Context) error, torn bool) (*ServerResult,
	error) {
	if err := harvest(ctx); err != nil {
		return nil, err
	}
	err := s.loop.Do(ctx, func() {
		if torn {
			s.store.Drop()
			s.env.Log.Warn("the last step is dropped: programs pushed in it and ended before its end")
		} else {
			s.commitStep()
		}
		s.progress.completeEpochs(s.env.Config.Model.Epochs)
		if s.hasWeights() {
			hash := s.store.Hash()
			s.result.WeightsSHA256 = hex.EncodeToString(hash[:])
		}
		s.result.Rows = s.store.Len()
	})
	if err != nil {
		return nil, err
	}
	s.finishNevertheless()
	stats, err := s.loop.Stats(ctx)
	if err != nil {
		return nil, err
	}
	s.result.ColdFrames = stats.Applied
	if h := s.generation.Load(); h != nil {
		s.result.Shares = len(h.listShares())
	}
	s.evaluator.busy.Wait()
	s.result.Evaluations = s.progress.allEvaluations()
	s.result.Latencies = telemetry.Summaries(s.loop.Recorder().Series())
	s.result.Overrun, s.result.LostAnswers = stats.Link.Overrun, stats.Link.NoRoom
	return &s.result, nil
}

// startLoop opens the server's link and endpoint.
func (s *server) startLoop(ctx context.Context, dim int) error {
	c := s.env.Config
	link, err := awaitInterface(ctx, s.env.Log, false, func() (link.Link, error) {
		return openLink(s.env, c.Server.Host, false)
	})
	if err != nil {
		return err
	}
	if s.endCapture, err = offerCapture(s.env, link, s.processName(), c.Server.Host); err != nil {
		return errors.Join(err, link.Close())
	}
	s.loop, err = transport.NewServer(transport.ServerConfig{
		Link: link, Gate: s.env.Machine.Gate, Job: c.Job.ID, Dim: dim, Handler: s.store, NoWeights: !s.hasWeights(),
		Index: uint16(s.env.Server), Sample: c.Telemetry.OneIn(), Codec: c.Codec.Config(),
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

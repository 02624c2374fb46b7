// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/cluster/plan"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer/share"
)

// How a job follows another plan while it goes on. Server 0 opens the shares that are new: if one
// is refused, nothing has changed. It harvests them from then on, and tells the workers
// (control/plan.go). When all have adopted the plan, the shares that it does not have any more get
// nothing, and have what was pushed to them before: they are harvested once more, and removed. A
// step that ends meanwhile has the sums of all open shares.
//
// This is the other way to leave an aggregator than a fence (fence.go). Here it works until it is
// left, and takes the last frames itself, so nothing has to be settled, and workers need no log.

// followed is a plan that the job follows.
type followed struct {
	version uint64
	allotment
	shares []*openShare // by index
}

// planChange is the result of a change.
type planChange struct {
	*pb.ChangePlanResponse
	err error
}

// followFirstPlan notes the plan with which the job begins, if it has one.
func (s *server) followFirstPlan() {
	if s.shares.by != nil {
		s.plan.Store(&followed{version: 1, allotment: s.shares, shares: s.generation.Load().listShares()})
	}
}

// planFor returns what tells workers the plan, nil if there is none.
func (s *server) planFor() func(worker uint16) *pb.Plan {
	if s.plan.Load() == nil {
		return nil
	}
	return func(worker uint16) *pb.Plan { return s.plan.Load().planMessage(worker) }
}

// planMessage returns the plan for a worker.
func (f *followed) planMessage(worker uint16) *pb.Plan {
	of := f.by.For(worker)
	p := &pb.Plan{PartRows: uint32(of.PartRows), Version: f.version}
	for i, parts := range of.Shares {
		p.Shares = append(p.Shares, &pb.PlannedShare{Job: uint32(f.ids[i]), Switch: f.by.Switches[i], Parts: parts,
			Instance: f.shares[i].job.Instance})
	}
	for _, to := range of.To {
		p.To = append(p.To, int32(to))
	}
	return p
}

// applyPlan makes the job follow the plan of a report. run is the context of the server.
func (s *server) applyPlan(call, run context.Context, req *pb.ChangePlanRequest) (*pb.ChangePlanResponse, error) {
	r := &plan.Report{}
	if err := json.Unmarshal(req.Report, r); err != nil {
		return nil, fmt.Errorf("the plan is not what 'libra plan --json' prints: %w", err)
	}
	to, err := r.Shares(s.env.Config, s.hot)
	if err != nil {
		return nil, err
	}
	return s.oneChange(func() (*pb.ChangePlanResponse, error) { return s.changePlan(call, run, req.Version, to) })
}

// errChanging refuses a change of the plan during another.
var errChanging = errors.New("the plan is being changed: wait until all workers have adopted it")

// oneChange makes a change of the plan, unless one is being made.
func (s *server) oneChange(change func() (*pb.ChangePlanResponse, error)) (*pb.ChangePlanResponse, error) {
	select {
	case s.changing <- struct{}{}: // until the end of finishChange
	default:
		return nil, errChanging
	}
	answer, err := change()
	if begun := (begunError{}); err != nil && !errors.As(err, &begun) {
		<-s.changing
	}
	return answer, err
}

// begunError is the error of a change that has begun.
type begunError struct{ error }

// errNothingThere is why no change is made for a drain.
var errNothingThere = errors.New("the job has no share at that switch")

// drainSwitch makes the job leave a switch. The other shares stay, and its parts go where there is
// room for them.
func (s *server) drainSwitch(call, run context.Context, name string) (*pb.DrainResponse, error) {
	c := s.env.Config
	now := s.plan.Load()
	switch i := c.SwitchNamed(name); {
	case now == nil:
		return nil, fmt.Errorf("the job follows no plan, so it has one aggregator: leave the name %q out", name)
	case i < 0 || c.Switches[i].Plain:
		return nil, fmt.Errorf("%q is none of the switches that aggregate: the job has shares at %v", name, now.by.Switches)
	}
	cold := 0
	answer, err := s.oneChange(func() (*pb.ChangePlanResponse, error) {
		now = s.plan.Load() // it does not change any more
		if !slices.Contains(now.by.Switches, name) {
			return nil, errNothingThere
		}
		var to *plan.Shares
		to, cold = now.by.Draining(c, s.hot, name, s.openableAt(call, now))
		if len(to.Switches) == 0 {
			return nil, fmt.Errorf("no other switch answers, has room for a part, and a free number (job.ids: %v) for a share: apply a plan of other switches ('libra plan apply')", c.Job.IDs)
		}
		return s.changePlan(call, run, now.version, to)
	})
	switch {
	case errors.Is(err, errNothingThere):
		answer = &pb.ChangePlanResponse{Version: now.version, Switches: now.by.Switches}
	case err != nil:
		return nil, err
	}
	told := &pb.DrainResponse{Plan: answer}
	if cold > 0 {
		told.Reason = fmt.Sprintf("%d parts are cold now, as no other switch answers, has room for them (switches[].slots), and a free number for a share (job.ids)", cold)
	}
	return told, nil
}

// freeID returns a number of the job that no share has at a switch, -1 if there is none.
func (f *followed) freeID(c *cluster.Config, at string) int {
	for _, id := range c.Job.HotIDs() {
		used := false
		for i, name := range f.by.Switches {
			used = used || name == at && f.ids[i] == id
		}
		if !used {
			return int(id)
		}
	}
	return -1
}

// openableAt reports of switches whether a share can be opened there: a number is free, and the
// daemon answers. One that was drained before may be stopped.
func (s *server) openableAt(ctx context.Context, now *followed) func(at string) bool {
	known := map[string]bool{}
	return func(at string) bool {
		can, asked := known[at]
		if !asked {
			can = now.freeID(s.env.Config, at) >= 0 && (slices.Contains(now.by.Switches, at) || s.daemonAnswers(ctx, at))
			known[at] = can
		}
		return can
	}
}

// daemonAnswers reports whether the daemon of a switch answers.
func (s *server) daemonAnswers(ctx context.Context, at string) bool {
	there, err := s.env.Config.ForSwitch(at)
	if err != nil {
		return false
	}
	conn, err := access.Dial(ctx, access.TheSwitch(), there.Switch.Control, s.security, candidateLimit, s.env.Log,
		s.env.Machine.Client...)
	if err != nil {
		s.env.Log.Info("a switch gets no share", "switch", at, "error", err)
		return false
	}
	conn.Close()
	return true
}

// changePlan makes the job follow another plan, which is based on one with a version, 0 for any. It
// returns when it does; an error other than begunError means that nothing has changed.
func (s *server) changePlan(call, run context.Context, version uint64,
	target *plan.Shares) (*pb.ChangePlanResponse, error) {
	now := s.plan.Load()
	if version != 0 && version != now.version {
		return nil, fmt.Errorf("--based-on %d: stale plan: the job follows plan %d by now: make the plan again, and base it on that", version,
			now.version)
	}
	next, closing, err := s.nextPlan(now, target)
	if err != nil {
		return nil, err
	}
	opening, end := context.WithCancelCause(call)
	defer end(nil)
	defer context.AfterFunc(run, func() { end(context.Cause(run)) })()
	h := s.generation.Load()
	kept := len(next.shares)
	opened, err := s.reachShares(opening, h, &next.allotment, kept, candidateLimit)
	if err == nil {
		err = s.openShares(opening, h, &next.allotment, opened, next.shares, 0)
	}
	if err != nil {
		return nil, err
	}
	next.shares = append(next.shares, opened...)
	if err := s.beginPlan(run, h, next, closing, opened); err != nil {
		s.dropShares(h, opened)
		return nil, err
	}
	s.env.Log.Info("the job follows another plan", "plan", next.version, "switches", next.by.Switches, "opened",
		len(opened),
		"to_close", len(closing))
	over := make(chan planChange, 1)
	s.ends.Go(func() {
		err := s.finishChange(run, h, next, closing)
		<-s.changing // before the answer, after which the next change may come
		over <- planChange{&pb.ChangePlanResponse{Version: next.version, Switches: next.by.Switches,
			Opened: uint32(len(opened)), Closed: uint32(len(closing))}, err}
	})
	select {
	case answer := <-over:
		if answer.err != nil {
			return nil, begunError{fmt.Errorf("the job has ended during the change of its plan: %w", answer.err)}
		}
		return answer.ChangePlanResponse, nil
	case <-call.Done():
		return nil, begunError{fmt.Errorf("the change of the plan goes on without the command that has begun it: %w",
			context.Cause(call))}
	}
}

// nextPlan returns a plan with the open shares that stay, which are its first ones, and those that
// are to be closed.
func (s *server) nextPlan(now *followed, target *plan.Shares) (next *followed, closing []*openShare, err error) {
	by, kept := target.Keeping(now.by)
	c := s.env.Config
	next = &followed{version: now.version + 1, allotment: allotment{by: by}}
	if err := next.takeShares(c, s.hot, by.Switches, by.For(c.Workers[0].ID)); err != nil {
		return nil, nil, err
	}
	for _, w := range c.Workers {
		if _, err := share.New(s.hot.Len(), s.hot.Dim(), s.hot.Fingerprint(), by.For(w.ID)); err != nil {
			return nil, nil, fmt.Errorf("worker %d: %w", w.ID, err)
		}
	}
	for i, one := range now.shares {
		if !slices.Contains(kept, i) {
			closing = append(closing, one)
		}
	}
	taken := *now // with the new ones
	taken.by = &plan.Shares{Switches: slices.Clone(now.by.Switches)}
	taken.ids = slices.Clone(now.ids)
	for i, name := range by.Switches {
		if i < len(kept) {
			next.shares, next.ids[i] = append(next.shares, now.shares[kept[i]]), now.ids[kept[i]]
			continue
		}
		id := taken.freeID(c, name)
		if id < 0 {
			return nil, nil, fmt.Errorf("job.ids: %v: shares have all numbers of the job at switch %q, also those that are to be closed, until the end of the change: list another number, which no other job has there, and start the job again; or drain that switch first", c.Job.IDs, name)
		}
		next.ids[i] = uint16(id)
		taken.by.Switches, taken.ids = append(taken.by.Switches, name), append(taken.ids, uint16(id))
	}
	if n := len(now.shares) + len(by.Switches) - len(kept); n > share.Max {
		return nil, nil, fmt.Errorf("the change would take %d shares at a time, and a job has at most %d: change fewer switches at once", n, share.Max)
	}
	return next, closing, nil
}

// beginPlan makes the store take harvests of the shares that are new, and tells the workers of the
// plan. Steps have the sums of all shares from now on.
func (s *server) beginPlan(ctx context.Context, h *harvesting, next *followed, closing, opened []*openShare) error {
	all := slices.Concat(next.shares, closing)
	for _, one := range opened {
		s.prepareShare(ctx, h, one)
	}
	err := s.loop.Do(ctx, func() {
		s.store.BeginGeneration(listInstances(all)...)
		h.open.Store(&all)
		s.plan.Store(next)
	})
	if err != nil {
		return err
	}
	for _, one := range opened {
		if one.parent.Load() == nil {
			go s.runHarvests(s.end, h, one)
		}
	}
	s.service.PlanChanged()
	return nil
}

// finishChange closes the shares that the plan does not have any more, when all workers have
// adopted it.
func (s *server) finishChange(ctx context.Context, h *harvesting, next *followed, closing []*openShare) error {
	if err := s.awaitAdopted(ctx, next.version); err != nil {
		return err
	}
	if err := takeShares(ctx, closing, s.env.Machine.turn); err != nil {
		return err // and the loss of a share ends the job
	}
	if err := s.harvestOrphans(ctx, h, closing, next.shares); err != nil {
		return err
	}
	err := s.loop.Do(ctx, func() {
		s.store.BeginGeneration(listInstances(next.shares)...)
		h.open.Store(&next.shares)
		for _, one := range closing {
			one.Finish()
			if s.timed != nil {
				s.timed.closeShare(one.job.Instance)
				s.endAnswered()
			}
		}
	})
	if err != nil {
		return err
	}
	s.dropShares(h, closing)
	s.env.Log.Info("all workers have adopted the plan", "plan", next.version, "closed", len(closing))
	return nil
}

// adoptedEvery is how often the server says for whom it waits.
const adoptedEvery = 10 * time.Second

// awaitAdopted returns when all workers that take part have adopted the plan of a version.
func (s *server) awaitAdopted(ctx context.Context, version uint64) error {
	say := time.Now().Add(adoptedEvery)
	for {
		workers := s.service.NotAdopted(version)
		if len(workers) == 0 {
			return nil
		}
		if time.Now().After(say) {
			say = time.Now().Add(adoptedEvery)
			slices.Sort(workers)
			s.env.Log.Info("waiting for workers to adopt the plan", "plan", version, "workers", workers)
		}
		if err := pauseFor(ctx, settledEvery); err != nil {
			return err
		}
	}
}

// dropShares ends shares that the job does not use any more, as far as their switches can be
// reached. It waits for parents that go on, until the server ends.
func (s *server) dropShares(h *harvesting, shares []*openShare) {
	if err := takeFromParents(h.ctx, shares); err != nil && h.ctx.Err() == nil {
		s.env.Log.Warn("a share was not removed from its parent", "error", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	releaseShares(shares)
	if err := removeShares(ctx, shares); err != nil {
		s.env.Log.Warn("a share was not removed; it ends with its lease", "error", err)
	}
	_ = closeConns(shares, h.listShares())
}

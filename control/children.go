// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/num/fixedpoint"
)

// A job may have children: jobs of the same owner at other aggregators, whose slots it has, too. A
// harvest of the parent has their sums. To it, a child is what a job is to its owner: a [Harvester]
// asks for a harvest, which the child repeats under the same number until it is acknowledged, and
// that is when the parent's own harvest is. So a connection that breaks anywhere on the way to the
// owner neither loses a sum nor brings one twice.

// child is a job that another one harvests.
type child struct {
	*Harvester
	parent *job
	job    *Owned
	at     string // its aggregator, for messages
	ranks  []rankRun
	conn   *grpc.ClientConn
	ctx    context.Context // of its harvests
	end    context.CancelFunc

	turn    func(what string) // of its aggregator
	tried   chan struct{}     // closed when it is added, or is not
	begun   atomic.Bool       // it is added: it had no sums before
	came    chan *Harvest     // harvests, one at a time
	applied chan struct{}     // gets a token when the last one that came is acknowledged
	over    chan struct{}     // closed when no more harvests come
	why     error             // why that is

	// Guarded by the parent's lock.
	leaves   bool      // it is a child no longer
	asked    time.Time // for the harvest that it has not sent yet; zero: for none
	taken    uint64    // harvests
	repeated uint64    // of these, sent again
	answer   timing    // from asking to the harvest
}

// rankRun is a run of ranks of a child: the first, the one after the last, and that of the first in
// the parent.
type rankRun struct{ first, end, to uint32 }

// rankRuns checks and returns the ranks of a child in a parent with a number of slots.
func rankRuns(runs []*pb.RankRun, slots int) (all []rankRun, err error) {
	next := uint64(0)
	for _, r := range runs {
		first := next
		next += uint64(r.Slots)
		if r.Slots == 0 || next > aggregator.MaxSlots || uint64(r.First)+uint64(r.Slots) > uint64(slots) {
			return nil, fmt.Errorf("%d slots from rank %d on are not among its %d", r.Slots, r.First, slots)
		}
		all = append(all, rankRun{uint32(first), uint32(next), r.First})
	}
	if len(all) == 0 {
		return nil, errors.New("it would have none of its slots")
	}
	return all, nil
}

// AddChild implements the service.
func (a *Aggregator) AddChild(ctx context.Context, req *pb.AddChildRequest) (*pb.AddChildResponse, error) {
	j, err := a.owned(ctx, req.Job, req.Key)
	if err != nil {
		return nil, err
	}
	refuse := func(code codes.Code, format string, args ...any) (*pb.AddChildResponse, error) {
		return nil, status.Errorf(code, "job %d as the parent of job %d at %s: "+format,
			append([]any{req.Job, req.Child, req.Control}, args...)...)
	}
	at, err := netip.ParseAddrPort(req.Control)
	if err != nil || req.Child >= aggregator.MaxJobs {
		return refuse(codes.InvalidArgument, "no such job can be: an address with a port, and a number up to %d, are needed",
			aggregator.MaxJobs-1)
	}
	ranks, err := rankRuns(req.Ranks, j.cfg.Slots)
	switch {
	case err != nil:
		return refuse(codes.InvalidArgument, "%v", err)
	case req.Instance == j.instance:
		return refuse(codes.InvalidArgument, "a job cannot be its own child")
	case a.cfg.Dial == nil:
		return refuse(codes.Unimplemented, "this daemon cannot reach others")
	case j.cfg.Mode.HasRounds():
		return refuse(codes.FailedPrecondition, "in %v mode the sums go to the workers", j.cfg.Mode)
	case j.cfg.Arithmetic == aggregator.LUT:
		return refuse(codes.FailedPrecondition, "sums of %v arithmetic cannot be added here: use exact or fixed",
			j.cfg.Arithmetic)
	}
	c := &child{parent: j, at: req.Control, ranks: ranks, turn: a.cfg.Turn, tried: make(chan struct{}),
		came: make(chan *Harvest), applied: make(chan struct{}, 1), over: make(chan struct{}),
		job: &Owned{ID: uint16(req.Child), Job: &pb.Job{Instance: req.Instance, Key: req.ChildKey}}}
	c.Harvester = NewHarvester(c.job, c.deliverHarvest, a.cfg.Log.With("parent", req.Job, "control", req.Control))
	c.slots = int(ranks[len(ranks)-1].end)
	c.ctx, c.end = context.WithCancel(a.ctx)
	if before, err := j.enterChild(ctx, c); err != nil || before != nil {
		c.end()
		switch {
		case err != nil:
			return nil, err
		case !j.isChild(before):
			return refuse(codes.FailedPrecondition, "it was a child before")
		}
		return &pb.AddChildResponse{}, nil
	}
	switch err := j.keepChild(c, a.tryChild(ctx, c, at)); {
	case errors.Is(err, errStopping):
		return nil, err
	case err != nil:
		return refuse(codes.FailedPrecondition, "%v", err)
	}
	return &pb.AddChildResponse{}, nil
}

// tryChild begins to harvest a child. Whether it can be harvested shows now, and not when workers
// push to it.
func (a *Aggregator) tryChild(ctx context.Context, c *child, at netip.AddrPort) (err error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	defer context.AfterFunc(c.ctx, done)() // it is removed
	if c.conn, err = a.cfg.Dial(ctx, at); err != nil {
		close(c.over)
		return err
	}
	c.job.client = pb.NewAggregatorClient(c.conn)
	if !a.goBackground(c.harvestChild) {
		close(c.over)
		c.conn.Close()
		return errStopping
	}
	limited, cancel := context.WithTimeout(ctx, childSilence)
	defer cancel()
	return c.Now(limited)
}

// harvestChild harvests until the child or its parent ends.
func (c *child) harvestChild() {
	ended := make(chan struct{})
	go func() {
		select {
		case <-c.parent.ended:
			c.end()
		case <-ended:
		}
	}()
	c.why = c.Run(c.ctx)
	close(ended)
	close(c.over)
	c.end()
	c.conn.Close()
}

// childOf returns the child with an instance, which may be removed, or not be added yet; nil if
// there is none.
func (j *job) childOf(instance uint64) *child {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.findChild(instance)
}

// findChild is childOf of a caller that holds the lock.
func (j *job) findChild(instance uint64) *child {
	at := slices.IndexFunc(j.children, func(c *child) bool { return c.job.Instance == instance })
	if at < 0 {
		return nil
	}
	return j.children[at]
}

// isChild reports whether a child is added, and has not been removed.
func (j *job) isChild(c *child) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return c.isOne()
}

// isOne is isChild of a caller that holds the lock.
func (c *child) isOne() bool { return c.begun.Load() && !c.leaves }

// enterChild makes a child one that is being added, so that no other call harvests it, too. If its
// instance is a child already, or was, it returns that. It waits for another call that adds it.
func (j *job) enterChild(ctx context.Context, c *child) (before *child, err error) {
	for {
		j.mu.Lock()
		if before = j.findChild(c.job.Instance); before == nil {
			j.children = append(j.children, c)
		}
		j.mu.Unlock()
		if before == nil {
			return nil, nil
		}
		select {
		case <-before.tried:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if j.childOf(c.job.Instance) == before {
			return before, nil
		}
	}
}

// keepChild makes the harvests of the job have those of a child, unless that could not be
// harvested, or was removed meanwhile.
func (j *job) keepChild(c *child, failed error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	defer close(c.tried)
	switch {
	case c.leaves:
		failed = cmp.Or(failed, errors.New("it was removed meanwhile"))
	case failed == nil:
		c.begun.Store(true)
		return nil
	default:
		j.children = slices.DeleteFunc(j.children, func(one *child) bool { return one == c })
	}
	c.end()
	return failed
}

// RemoveChild implements the service.
func (a *Aggregator) RemoveChild(ctx context.Context, req *pb.RemoveChildRequest) (*pb.RemoveChildResponse, error) {
	j, err := a.owned(ctx, req.Job, req.Key)
	if err != nil {
		return nil, err
	}
	c := j.childOf(req.Instance)
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "job %d has no child of instance %d", req.Job, req.Instance)
	}
	j.mu.Lock()
	c.leaves = true
	j.mu.Unlock()
	c.end()
	select {
	case <-c.over:
		return &pb.RemoveChildResponse{Last: c.lastApplied()}, nil
	case <-j.ended:
		return nil, j.why
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// deliverHarvest gives a harvest of the child to the parent, and returns when that may be
// acknowledged.
func (c *child) deliverHarvest(h *Harvest) error {
	if !c.begun.Load() {
		if h.Frames > 0 {
			return errors.New("it has sums from before it was a child")
		}
		return nil
	}
	c.noteHarvest(h)
	select {
	case c.came <- h:
	case <-c.ctx.Done():
		return c.ctx.Err()
	}
	select { // the end of ctx does not matter any more
	case <-c.applied:
		c.turn("acknowledges the harvest of job " + c.at)
		return nil
	case <-c.parent.ended:
		return c.parent.why
	}
}

// requestHarvest asks the child for a harvest.
func (c *child) requestHarvest() (request uint64) {
	c.parent.mu.Lock()
	c.asked = time.Now()
	c.parent.mu.Unlock()
	return c.Ask()
}

// noteHarvest notes that a harvest has come. One that was sent again answers no request.
func (c *child) noteHarvest(h *Harvest) {
	c.parent.mu.Lock()
	defer c.parent.mu.Unlock()
	c.taken++
	if h.Request == 0 {
		c.repeated++
	}
	if !c.asked.IsZero() {
		c.answer.addDuration(time.Since(c.asked))
		c.asked = time.Time{}
	}
}

// childStats returns the statistics of all children. The caller holds the lock.
func (j *job) childStats() (all []*pb.ChildStats) {
	for _, c := range j.children {
		if !c.isOne() {
			continue
		}
		s := &pb.ChildStats{Job: uint32(c.job.ID), Control: c.at, Instance: c.job.Instance, Harvests: c.taken,
			Repeated: c.repeated, BrokenStreams: c.brokenStreams(), Answer: c.answer.toMessage()}
		if !c.asked.IsZero() {
			s.AwaitedNs = uint64(time.Since(c.asked))
		}
		all = append(all, s)
	}
	return all
}

const (
	// lookEvery is how often a parent that waits for a child looks whether it can reach that.
	lookEvery = 100 * time.Millisecond
	// childSilence is how long it may be unable to.
	childSilence = 5 * time.Second
)

// gatherChildren asks all children for their harvests, and adds these to the job's next one. It
// reports whether that has everything that they had acknowledged before: not if one of them has
// sent a harvest again. What it has added stays if it fails, for the next stream.
func (j *job) gatherChildren(ctx context.Context) (whole bool, err error) {
	j.mu.Lock()
	children := slices.DeleteFunc(slices.Clone(j.children), func(c *child) bool { return !c.isOne() })
	j.mu.Unlock()
	whole = true
	requests := make([]uint64, len(children))
	for i, c := range children {
		requests[i] = c.requestHarvest()
	}
	for i, c := range children {
		if slices.Contains(j.gathered, c) { // by an earlier stream
			whole = false
			continue
		}
		h, err := c.awaitHarvest(ctx)
		switch {
		case err != nil && j.isChild(c):
			return false, err
		case err != nil:
			continue
		}
		j.gathered = append(j.gathered, c)
		whole = whole && h.Request >= requests[i]
		if err := j.addHarvest(c, h); err != nil {
			return false, err
		}
	}
	return whole, nil
}

// awaitHarvest returns the next harvest of a child.
func (c *child) awaitHarvest(ctx context.Context) (*Harvest, error) {
	lost := func(why string) error {
		return status.Errorf(codes.Aborted, "job %d lost its child, job %d at %s: %v", c.parent.cfg.ID, c.job.ID, c.at, why)
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for broken := time.Duration(0); ; {
		select {
		case h := <-c.came:
			return h, nil
		case <-c.over:
			return nil, lost(status.Convert(c.why).Message())
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-look.C:
		}
		if broken += lookEvery; c.conn.GetState() == connectivity.Ready {
			broken = 0
		}
		if broken >= childSilence {
			return nil, lost(fmt.Sprintf("it cannot be reached for %v", childSilence))
		}
	}
}

// addHarvest adds the sums of a child's harvest.
func (j *job) addHarvest(c *child, h *Harvest) error {
	at := 0 // run of the last rank: they ascend
	for i, rank := range h.Ranks {
		if rank < c.ranks[at].first {
			at = 0
		}
		for at < len(c.ranks) && rank >= c.ranks[at].end {
			at++
		}
		if at == len(c.ranks) {
			return status.Errorf(codes.Internal, "job %d: its child at %s has a sum of rank %d, beyond its last", j.cfg.ID,
				c.at, rank)
		}
		if err := j.addSum(int(c.ranks[at].to+rank-c.ranks[at].first), h.Sums[i]); err != nil {
			return err
		}
	}
	j.ownSums().Frames += h.Frames
	j.ownSums().Pairs += h.Pairs
	return nil
}

// addBank adds the sums of the job's own bank to those of its children.
func (j *job) addBank(b *aggregator.Bank) (err error) {
	b.All(func(first int, slots []int64) bool {
		for i, sum := range slots {
			if sum != 0 && err == nil {
				err = j.addSum(first+i, sum)
			}
		}
		return err == nil
	})
	j.sums.Frames += b.Frames
	j.sums.Pairs += b.Pairs
	return err
}

// ownSums returns the sums of the next harvest of a job with children.
func (j *job) ownSums() *aggregator.Bank {
	if j.sums == nil {
		j.sums = &aggregator.Bank{Slots: make([]int64, j.cfg.Slots)}
		if n := j.cfg.Blocks(); n > 0 {
			j.sums.Touched = make([]uint8, n)
		}
	}
	return j.sums
}

// addSum adds to a sum of the next harvest. A sum that is too large means that the training has
// diverged.
func (j *job) addSum(rank int, sum int64) error {
	sums := j.ownSums()
	total, ok := fixedpoint.Add(sums.Slots[rank], sum)
	if !ok {
		told := status.Newf(codes.OutOfRange, "job %d: with those of its children, the sum of rank %d is too large", j.cfg.ID,
			rank)
		if detailed, err := told.WithDetails(&pb.Diverged{}); err == nil {
			told = detailed
		}
		return told.Err()
	}
	sums.Slots[rank] = total
	if sums.Touched != nil {
		sums.Touched[rank/aggregator.BlockSlots] = 1
	}
	return nil
}

// releaseChildren lets the children's harvests be acknowledged that were in one which is.
func (j *job) releaseChildren() {
	for _, c := range j.gathered {
		c.applied <- struct{}{}
	}
	j.gathered = j.gathered[:0]
	if j.sums != nil {
		j.sums.Wipe()
		j.sums.Frames, j.sums.Pairs = 0, 0
	}
}

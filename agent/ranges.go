// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/agent/agentproto"
)

// Range describes jobs without a parameter server, which differ in their numbers only. Clients open
// them as NAME/0, NAME/1 and so on; the agent joins each when the first client asks for it. A
// client that opens one as its owner makes the agent create it, and takes its harvests.
type Range struct {
	Name string
	Jobs int
	// Join joins a job, which has a hot set, as this host. It waits for a while for the job's owner.
	// Leave is called when the job's sessions have ended.
	Join func(ctx context.Context, index int) (j Job, leave func() error, err error)
	// Own creates a job.
	Own func(ctx context.Context, index int) (Owner, error)
	// Period is the shortest time between two harvests, unless a client wants one now: a millisecond
	// or more.
	Period time.Duration

	// Users, Groups and Limits are those of each job.
	Users, Groups []uint32
	Limits        Limits
}

// Owner is a job that was created for a client.
type Owner interface {
	// Take acknowledges the sums that the call before has returned, and returns the next ones by rank
	// of the scalar, in units of the job: those of all pushes that were acknowledged before the call,
	// and are in no earlier sums. They are valid until the next call.
	Take(ctx context.Context) ([]int64, error)
	// Instance distinguishes the job from others of its number.
	Instance() uint64
	// Lost returns nil, or an error that wraps agentproto.AggregatorLost if the job has ended because
	// its aggregator was lost.
	Lost() error
	// Remove ends the job.
	Remove() error
}

// maxRangeJobs bounds the jobs of a range: the numbers of jobs end at 255.
const maxRangeJobs = 256

// complete checks a range, and fills in defaults.
func (r *Range) complete() error {
	switch {
	case r.Name == "" || len(r.Name) > 63-len("/255"):
		return fmt.Errorf("range %q: the name is %d bytes long: it must be 1 to %d", r.Name, len(r.Name), 63-len("/255"))
	case r.Jobs < 1 || r.Jobs > maxRangeJobs:
		return fmt.Errorf("range %s: %d jobs: it must be 1 to %d", r.Name, r.Jobs, maxRangeJobs)
	case r.Join == nil || r.Own == nil:
		return fmt.Errorf("range %s: Join or Own is not set", r.Name)
	}
	r.Period = max(r.Period, time.Millisecond)
	return r.Limits.complete("range " + r.Name)
}

// rangeJob is one job of a range.
type rangeJob struct {
	agent *Agent
	of    *Range
	index int
	name  string

	mu      sync.Mutex
	own     *ownership    // of a client that owns it, or is about to, or has just ended; or nil
	joining chan struct{} // closed when the join in progress ends, or nil
	run     *rangeRun     // nil unless joined
	closed  bool          // by the agent
}

// rangeRun is one life of a job of a range on this host.
type rangeRun struct {
	of    *rangeJob
	job   *job
	leave func() error
	once  sync.Once
	err   error
}

// endRun ends the sessions with a reason that wraps a code, and leaves the job.
func (r *rangeRun) endRun(why error) error {
	r.once.Do(func() {
		r.err = errors.Join(r.job.closeJob(why), r.leave())
		r.of.mu.Lock()
		r.of.run = nil
		r.of.mu.Unlock()
	})
	return r.err
}

// findRange returns the job of a range that a client names, nil if there is none of that name.
func (a *Agent) findRange(name string) (*rangeJob, error) {
	of, number, ok := strings.Cut(name, "/")
	jobs := a.ranges[of]
	if !ok || jobs == nil {
		return nil, nil
	}
	n, err := strconv.Atoi(number)
	if err != nil || strconv.Itoa(n) != number || n < 0 || n >= len(jobs) {
		return nil, fmt.Errorf("%w: %q; the range %s has %d jobs, %s/0 to %s/%d: use one of these, or give the agent a longer range",
			agentproto.NoJob, name, of, len(jobs), of, of, len(jobs)-1)
	}
	return jobs[n], nil
}

// openJobs returns the jobs of ranges that are open on this host.
func (a *Agent) openJobs() (all []*job) {
	for _, jobs := range a.ranges {
		for _, r := range jobs {
			r.mu.Lock()
			if r.run != nil {
				all = append(all, r.run.job)
			}
			r.mu.Unlock()
		}
	}
	return all
}

// startRangeSession starts the session of a client of a range, which may own its job.
func (a *Agent) startRangeSession(r *rangeJob, who *unix.Ucred, hello agentproto.Hello,
	start func(*job, *ownership) error) (err error) {
	if access := (Job{Users: r.of.Users, Groups: r.of.Groups}); !access.allows(who) {
		return fmt.Errorf("%w: user %s, job %s", agentproto.NotAllowed, userName(who.Uid), hello.Job)
	}
	var own *ownership
	if hello.Owner {
		if own, err = r.takeJob(a.ctx); err != nil {
			return err
		}
	}
	j, err := r.joinJob(a.ctx)
	if err == nil && j.isOver() {
		// The client has just been told of the job's end, and this host has not left it yet.
		r.endStale(j)
		j, err = r.joinJob(a.ctx)
	}
	for err == nil && own != nil && j.cfg.Instance != own.owner.Instance() {
		r.endStale(j)
		j, err = r.joinJob(a.ctx)
	}
	if err == nil {
		err = start(j, own)
	}
	if err != nil && own != nil {
		err = errors.Join(err, own.releaseJob())
	}
	return err
}

// takeJob creates the job for a client. It waits until the job of an owner that has ended is
// removed.
func (r *rangeJob) takeJob(ctx context.Context) (*ownership, error) {
	own := &ownership{of: r, hurry: make(chan struct{}, 1), gone: make(chan struct{})}
	for {
		r.mu.Lock()
		before, closed := r.own, r.closed
		if before == nil && !closed {
			r.own = own
		}
		r.mu.Unlock()
		switch {
		case closed:
			return nil, agentproto.AgentClosed
		case before == nil:
			var err error
			if own.owner, err = r.of.Own(ctx, r.index); err != nil {
				own.giveUp()
				return nil, r.notOpen(err)
			}
			return own, nil
		case !before.ending.Load():
			return nil, fmt.Errorf("%w: job %s on this host", agentproto.Owned, r.name)
		}
		select {
		case <-before.gone:
		case <-ctx.Done():
			return nil, agentproto.AgentClosed
		}
	}
}

// giveUp lets another client own the job.
func (o *ownership) giveUp() {
	o.of.mu.Lock()
	defer o.of.mu.Unlock()
	o.of.own = nil
	close(o.gone)
}

// notOpen is the refusal of a client whose job cannot be opened.
func (r *rangeJob) notOpen(err error) error {
	if r.agent.ctx.Err() != nil {
		return agentproto.AgentClosed
	}
	return fmt.Errorf("%w: job %s: %w", agentproto.NotOpen, r.name, err)
}

// joinJob returns the job on this host, which it joins if this is not done yet.
func (r *rangeJob) joinJob(ctx context.Context) (*job, error) {
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, agentproto.AgentClosed
		}
		if r.run != nil {
			defer r.mu.Unlock()
			return r.run.job, nil
		}
		joining := r.joining
		if joining == nil {
			r.joining = make(chan struct{})
		}
		r.mu.Unlock()
		if joining == nil {
			return r.joinNow(ctx)
		}
		select { // the others, and then perhaps once more
		case <-joining:
		case <-ctx.Done():
			return nil, agentproto.AgentClosed
		}
	}
}

// joinNow joins the job, while others wait.
func (r *rangeJob) joinNow(ctx context.Context) (*job, error) {
	run, err := r.newRun(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.joining)
	r.joining = nil
	if err != nil {
		return nil, r.notOpen(err)
	}
	r.run = run
	// If the agent has closed the range meanwhile, it waits for this handshake, and then ends the run.
	r.agent.watching.Go(func() {
		<-run.job.cfg.Worker.Done()
		if err := run.endRun(agentproto.JobEnded); err != nil {
			run.job.log.Warn("a job of a range was not left", "error", err)
		}
	})
	return run.job, nil
}

// endStale ends this host's part in an earlier job, of whose end it has perhaps not heard yet, and
// waits until the host has left that.
func (r *rangeJob) endStale(j *job) {
	r.mu.Lock()
	run := r.run
	r.mu.Unlock()
	if run != nil && run.job == j {
		if err := run.endRun(fmt.Errorf("%w: its owner has ended", agentproto.JobEnded)); err != nil {
			j.log.Warn("a job of a range was not left", "error", err)
		}
	}
}

func (r *rangeJob) newRun(ctx context.Context) (*rangeRun, error) {
	cfg, leave, err := r.of.Join(ctx, r.index)
	if err != nil {
		return nil, err
	}
	cfg.Dim, cfg.NoServer = cfg.HotSet.Dim(), true
	cfg.Name, cfg.Users, cfg.Groups, cfg.Limits = r.name, r.of.Users, r.of.Groups, r.of.Limits
	j, err := newJob(cfg, r.agent.cfg.Log.With("job", r.name), r.agent.cfg.Turn)
	if err != nil {
		return nil, errors.Join(err, leave())
	}
	return &rangeRun{of: r, job: j, leave: leave}, nil
}

// newRanges returns the jobs of ranges by their names.
func newRanges(a *Agent, ranges []Range) map[string][]*rangeJob {
	all := map[string][]*rangeJob{}
	for i := range ranges {
		of := &ranges[i]
		for n := range of.Jobs {
			all[of.Name] = append(all[of.Name], &rangeJob{agent: a, of: of, index: n, name: fmt.Sprintf("%s/%d", of.Name, n)})
		}
	}
	return all
}

// closeRanges lets no further client open a job of a range, and returns those that are open.
func (a *Agent) closeRanges() (open []*rangeRun) {
	for _, jobs := range a.ranges {
		for _, r := range jobs {
			r.mu.Lock()
			r.closed = true
			if r.run != nil {
				open = append(open, r.run)
			}
			r.mu.Unlock()
		}
	}
	return open
}

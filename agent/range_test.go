// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/transport"
)

// treasury is the owner of a job for a test: harvest n has the sum n in each scalar of the row of
// rank n, and in that of rank 0.
type treasury struct {
	mu      sync.Mutex
	takes   int
	empty   int // so many harvests have nothing
	removed int
	fail    error
	lost    error
	remove  error
	waits   chan struct{} // a Take that waits until its client has gone closes it
	taken   chan int      // gets the number of each harvest if it is not nil
}

func (o *treasury) Take(ctx context.Context) ([]int64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if waits := o.waits; waits != nil {
		o.waits = nil
		o.mu.Unlock()
		close(waits)
		<-ctx.Done()
		o.mu.Lock()
		return nil, ctx.Err()
	}
	if o.fail != nil {
		return nil, o.fail
	}
	o.takes++
	if o.taken != nil {
		o.taken <- o.takes
	}
	sums := make([]int64, hotRows*dim)
	if o.empty > 0 {
		o.empty--
		return sums, nil
	}
	for i := range dim {
		sums[i] = int64(o.takes) << -ps.DefaultExp
		sums[o.takes*dim+i] = sums[i]
	}
	return sums, nil
}

func (o *treasury) Instance() uint64 { return 0 }

func (o *treasury) Lost() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lost
}

func (o *treasury) Remove() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.removed++
	return o.remove
}

// set changes the owner.
func (o *treasury) set(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

func (o *treasury) count() (takes, removed int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.takes, o.removed
}

// newRangeBed opens a bed whose agent has a range of two jobs instead of a job. Its owners are
// treasuries; the first job has the bed's worker, with the changes, the second one cannot be
// opened.
func newRangeBed(t *testing.T, period time.Duration, changes ...func(*agent.Config, *agent.Job)) (*bed, *treasury) {
	o := &treasury{}
	b := newBed(t, func(c *agent.Config) {
		job := c.Jobs[0]
		for _, change := range changes {
			change(c, &job)
		}
		c.Jobs = nil
		c.Ranges = []agent.Range{{
			Name: "hot", Jobs: 2, Period: period,
			Join: func(_ context.Context, index int) (agent.Job, func() error, error) {
				if index != 0 {
					return agent.Job{}, nil, errors.New("the switch is away: bring it back")
				}
				return job, func() error { return job.Worker.Close() }, nil
			},
			Own: func(_ context.Context, index int) (agent.Owner, error) {
				if index != 0 {
					return nil, errors.New("the switch is away: bring it back")
				}
				return o, nil
			},
			Limits: agent.Limits{Clients: 3},
		}}
	})
	return b, o
}

// own opens a session that owns the job, or not.
func own(owner bool) func(*agentproto.Hello) {
	return func(h *agentproto.Hello) {
		h.Job, h.Owner, h.Features = "hot/0", owner, agentproto.FeatureHarvest
	}
}

// askFor submits a harvest of n rows.
func askFor(t *testing.T, c *agentclient.Client, now bool, n uint32) (ticket uint64) {
	t.Helper()
	e := agentproto.Entry{Op: agentproto.Harvest, Dim: dim, Keys: 0, Values: 8 * uint64(n), N: n}
	if n == 0 {
		e = agentproto.Entry{Op: agentproto.Harvest}
	}
	if now {
		e.Step = agentproto.Now
	}
	ticket, err := c.Submit(within(t), e)
	must(t, err)
	return ticket
}

func doneWith(t *testing.T, c *agentclient.Client, ticket uint64) agentproto.Completion {
	t.Helper()
	got, err := c.Wait(within(t), ticket)
	must(t, err)
	return got
}

// A harvest has its rows in the order of their keys; those for which the entry has no memory are
// there for SUMS.
func TestHarvestRows(t *testing.T) {
	b, _ := newRangeBed(t, time.Hour)
	c := b.dial(own(true))
	if w := c.Welcome(); w.Features != agentproto.AllFeatures {
		t.Errorf("the agent has the features %#x", w.Features)
	}
	for n := range 4 { // 0: the first does not wait, either
		sum := float32(n + 1)
		copy(c.Memory().Keys(0, 4), []uint64{77, 77, 77, 77})
		got := doneWith(t, c, askFor(t, c, n > 0, uint32(n)))
		if got.Status != agentproto.OK || got.Detail != 2 {
			t.Fatalf("harvest %d: %+v", n, got)
		}
		written := min(n, 2)
		want := slices.Concat([]uint64{0, uint64(n + 1)}[:written], []uint64{77, 77}[:2-written])
		if keys := c.Memory().Keys(0, 2); n != 1 && !slices.Equal(keys, want) {
			t.Errorf("harvest %d of %d rows has written %v, want %v", n, n, keys, want)
		}
		for _, v := range c.Memory().Floats(8*uint64(n), written*dim) {
			if v != sum {
				t.Errorf("harvest %d has the sum %v", n, v)
			}
		}
		keys, rows := make([]uint64, 2), make([]float32, 2*dim)
		must(t, c.Sums(within(t), 0, keys, rows))
		if !slices.Equal(keys, []uint64{0, uint64(n + 1)}) || slices.Min(rows) != sum || slices.Max(rows) != sum {
			t.Errorf("the rows of harvest %d are %v, %v", n, keys, rows)
		}
	}
	var failed *agentclient.Failed
	if err := c.Sums(within(t), 2, make([]uint64, 1), make([]float32, dim)); !errors.As(err, &failed) || failed.Status != agentproto.NoSums {
		t.Errorf("rows that a harvest does not have: %v", err)
	}
}

// A harvest that may wait is due a period after the one before, and has sums. One that may not wait
// makes those before it not wait either, and may be empty. Without an entry there is none.
func TestHarvestsWaitForTheirTime(t *testing.T) {
	b, o := newRangeBed(t, time.Hour)
	o.set(func() { o.taken = make(chan int, 10) })
	c := b.dial(own(true))
	if got := doneWith(t, c, askFor(t, c, false, 0)); got.Status != agentproto.OK || got.Detail != 2 {
		t.Errorf("the first: %+v", got)
	}
	o.set(func() { o.empty = 2 })
	waits, now := askFor(t, c, false, 0), askFor(t, c, true, 0)
	if got := doneWith(t, c, waits); got.Status != agentproto.OK || got.Detail != 0 {
		t.Errorf("the one before: %+v", got)
	}
	if got := doneWith(t, c, now); got.Status != agentproto.OK || got.Detail != 0 {
		t.Errorf("the one at once: %+v", got)
	}
	if takes, _ := o.count(); takes != 3 {
		t.Errorf("there were %d harvests for 3 entries", takes)
	}

	short, o := newRangeBed(t, time.Millisecond)
	o.set(func() { o.empty = 3 })
	c = short.dial(own(true))
	if got := doneWith(t, c, askFor(t, c, false, 0)); got.Status != agentproto.OK || got.Detail != 2 {
		t.Errorf("after empty ones: %+v", got)
	}
	if takes, _ := o.count(); takes != 4 {
		t.Errorf("%d harvests, want one that is not empty", takes)
	}
}

// The memory of an owner that takes harvests for ever does not grow.
func TestHarvestsReuseMemory(t *testing.T) {
	b, o := newRangeBed(t, time.Hour)
	c := b.dial(own(true))
	ctx, before := within(t), uint64(0)
	for i := range 300 {
		o.set(func() { o.takes = 0 })
		if _, _, err := c.Harvest(ctx, true); err != nil {
			t.Fatal(err)
		}
		stats := b.agent.Stats().Jobs[0]
		if stats.Name != "hot/0" || len(stats.Clients) != 1 || stats.Clients[0].InFlight != 0 {
			t.Fatalf("after %d harvests: %+v", i, stats)
		}
		if i == 0 {
			before = uint64(stats.Memory)
		}
		if uint64(stats.Memory) != before {
			t.Fatalf("%d bytes after %d harvests, %d after the first", stats.Memory, i, before)
		}
	}
}

// A job has one owner. With its session, the sessions of all clients end, and then the job.
func TestOwnersSession(t *testing.T) {
	b, o := newRangeBed(t, time.Hour)
	owner := b.dial(own(true))
	if _, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: "hot/0", Owner: true, Features: 1}); !errors.Is(err, agentproto.Owned) {
		t.Errorf("a second owner: %v", err)
	}
	other := b.dial(own(false))
	if got := doneWith(t, other, askFor(t, other, true, 1)); got.Status != agentproto.NotOwner {
		t.Errorf("a harvest of another client: %+v", got)
	}
	keys, grads := batch(1, 20)
	if _, err := other.Push(within(t), keys, grads); err != nil { // and the session goes on
		t.Fatal(err)
	}
	must(t, other.Flush(within(t)))
	taken := make(chan int)
	o.set(func() { o.taken = taken }) // which stops the next harvest
	askFor(t, owner, true, 1)
	<-taken
	waits := askFor(t, owner, false, 1)
	_ = owner.Conn().Close()
	var failed *agentclient.Failed
	err := other.Flush(within(t))
	for err == nil {
		err = other.Flush(within(t))
	}
	if !errors.Is(err, agentproto.JobEnded) && !(errors.As(err, &failed) && failed.Status == agentproto.JobEnded) || !strings.Contains(err.Error(), "its owner has ended") {
		t.Errorf("the other client's session ended with %v", err)
	}
	for ctx := within(t); ; {
		if _, removed := o.count(); removed == 1 || ctx.Err() != nil {
			break
		}
	}
	if takes, removed := o.count(); removed != 1 || takes != 1 {
		t.Errorf("the job was removed %d times, after %d harvests; entry %d was in the ring", removed, takes, waits)
	}
}

// A client that has been told that a job of a range has ended, and comes again before the host has
// left that, is not refused for the old job's end.
func TestJobOfARangeIsJoinedAgain(t *testing.T) {
	leaves := make(chan struct{})
	var worker *transport.Worker
	b := newBed(t, func(c *agent.Config) {
		job := c.Jobs[0]
		c.Jobs, worker = nil, job.Worker
		join := func(context.Context, int) (agent.Job, func() error, error) {
			select {
			case <-leaves:
				return agent.Job{}, nil, errors.New("this is the job's next life")
			default:
				return job, func() error { <-leaves; return nil }, nil
			}
		}
		c.Ranges = []agent.Range{{Name: "hot", Jobs: 1, Join: join, Limits: agent.Limits{Clients: 3},
			Own: func(context.Context, int) (agent.Owner, error) { return &treasury{}, nil }}}
	})
	c := b.dial(own(false))
	must(t, worker.Close())
	err := c.Flush(within(t))
	for err == nil {
		err = c.Flush(within(t))
	}
	again := make(chan error, 1)
	go func() {
		_, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: "hot/0", Features: 1})
		again <- err
	}()
	select {
	case err = <-again:
		close(leaves)
	case <-time.After(50 * time.Millisecond):
		close(leaves)
		err = <-again
	}
	if !errors.Is(err, agentproto.NotOpen) || !strings.Contains(err.Error(), "this is the job's next life") {
		t.Errorf("the client that came again: %v", err)
	}
}

// Clients are told why a job of a range cannot be opened, and an owner that its harvests have
// ended.
func TestRangeFailures(t *testing.T) {
	b, o := newRangeBed(t, time.Hour)
	for owner, hello := range map[bool]agentproto.Hello{true: {Job: "hot/1", Owner: true, Features: 1}, false: {Job: "hot/1"}} {
		if _, err := agentclient.Dial(within(t), b.socket, hello); !errors.Is(err, agentproto.NotOpen) || !strings.Contains(err.Error(), "job hot/1: the switch is away: bring it back") {
			t.Errorf("owner %v: %v", owner, err)
		}
	}
	if _, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: "hot/0", Owner: true, Features: 1, Dim: dim + 1}); !errors.Is(err, agentproto.Dimension) {
		t.Errorf("an owner of other rows: %v", err)
	}
	if _, removed := o.count(); removed != 1 {
		t.Errorf("a job whose owner was refused was removed %d times", removed)
	}

	b, o = newRangeBed(t, time.Hour)
	c := b.dial(own(true))
	o.set(func() { o.fail = errors.New("job 20 was removed by an operator") })
	if got := doneWith(t, c, askFor(t, c, true, 0)); got.Status != agentproto.JobEnded {
		t.Errorf("after the end of the harvests: %+v", got)
	}

	// A job with a parameter server has an owner already.
	if _, err := agentclient.Dial(within(t), newBed(t).socket, agentproto.Hello{Job: jobName, Owner: true, Features: 1}); !errors.Is(err, agentproto.Owned) || !strings.Contains(err.Error(), "job clicks has a parameter server") {
		t.Errorf("an owner of a job with a server: %v", err)
	}
}

// A range that cannot be served is refused by name.
func TestRangeConfig(t *testing.T) {
	join := func(context.Context, int) (agent.Job, func() error, error) { return agent.Job{}, nil, nil }
	own := func(context.Context, int) (agent.Owner, error) { return nil, nil }
	for want, ranges := range map[string][]agent.Range{
		`range "": the name is 0 bytes long: it must be 1 to 59`: {{Jobs: 1, Join: join, Own: own}},
		"the name is 60 bytes long":                              {{Name: strings.Repeat("n", 60), Jobs: 1, Join: join, Own: own}},
		"range a: 0 jobs: it must be 1 to 256":                   {{Name: "a", Join: join, Own: own}},
		"range a: 257 jobs":                                      {{Name: "a", Jobs: 257, Join: join, Own: own}},
		"range a: Join or Own is not set":                        {{Name: "a", Jobs: 1, Join: join}},
		"range a: the name is used twice":                        {{Name: "a", Jobs: 1, Join: join, Own: own}, {Name: "a", Jobs: 1, Join: join, Own: own}},
		"range a: 5 bytes of memory for each client":             {{Name: "a", Jobs: 1, Join: join, Own: own, Limits: agent.Limits{Memory: 5}}},
	} {
		a, err := agent.Listen(agent.Config{Socket: fmt.Sprintf("%s/agent.sock", shortDir(t)), Ranges: ranges})
		if err == nil {
			_ = a.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// An owner does not get the job of the one before it, which the host has not left: that is left,
// its clients are told why, and the owner's is joined.
func TestOwnerGetsItsOwnInstance(t *testing.T) {
	joins := 0
	b := newBed(t, func(c *agent.Config) {
		job := c.Jobs[0]
		job.Instance = 1 + (&treasury{}).Instance()
		c.Jobs = nil
		join := func(context.Context, int) (agent.Job, func() error, error) {
			if joins++; joins > 1 {
				return agent.Job{}, nil, errors.New("this is the owner's job")
			}
			return job, job.Worker.Close, nil
		}
		c.Ranges = []agent.Range{{Name: "hot", Jobs: 1, Join: join, Limits: agent.Limits{Clients: 3},
			Own: func(context.Context, int) (agent.Owner, error) { return &treasury{}, nil }}}
	})
	c := b.dial(own(false))
	_, err := agentclient.Dial(within(t), b.socket, agentproto.Hello{Job: "hot/0", Owner: true, Features: agentproto.FeatureHarvest})
	if !errors.Is(err, agentproto.NotOpen) || !strings.Contains(err.Error(), "this is the owner's job") {
		t.Fatalf("the owner: %v", err)
	}
	for err = c.Flush(within(t)); err == nil; err = c.Flush(within(t)) {
	}
	if !strings.Contains(err.Error(), "its owner has ended") {
		t.Errorf("the former job's client: %v", err)
	}
}

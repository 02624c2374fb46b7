// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/libra-ina/libra/agent/agentclient"
	"github.com/libra-ina/libra/agent/agentproto"
	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/packer"
)

const (
	rangeRows = 300 // hot, with the keys 7, 10, 13, ...
	rangeDim  = 2
)

func rangeKey(i int) uint64 { return uint64(7 + 3*i) }

// rangeBed is a switch, and agents with a range of jobs on two hosts.
type rangeBed struct {
	t       *testing.T
	config  *cluster.Config
	dir     string
	log     *lines
	sockets []string
	stops   []func() error
}

// newRangeBed starts a switch and the agents, each with a range of jobs. change, if not nil,
// changes the cluster.
func newRangeBed(t *testing.T, jobs int, change func(*cluster.Config)) *rangeBed {
	t.Helper()
	const hosts = 2
	c := newCluster(t, hosts)
	c.Server, c.Model, c.Data, c.Job.Sync = cluster.Server{}, cluster.Model{}, cluster.Data{}, false
	c.Job.ID, c.Job.Exponent = 10, new(-30)
	var keys []uint64
	for i := range rangeRows {
		keys = append(keys, rangeKey((i*7+3)%rangeRows)) // ranks are not in the order of keys
	}
	hot, err := packer.NewHotSet(rangeDim, keys, nil, packer.Meta{})
	if err == nil {
		err = packer.SaveHotSet(c.Job.HotSet, hot)
	}
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(c)
	}
	b := &rangeBed{t: t, dir: shortDir(t), log: new(lines)}
	if err := c.Write(b.file()); err != nil {
		t.Fatal(err)
	}
	if b.config, err = cluster.ReadAny(b.file()); err != nil {
		t.Fatal(err)
	}
	startSwitch(t, b.config)
	for host := range hosts {
		b.sockets = append(b.sockets, filepath.Join(b.dir, fmt.Sprint(host)))
		b.stops = append(b.stops, b.startAgent(host, jobs))
	}
	return b
}

func (b *rangeBed) file() string { return filepath.Join(b.dir, "cluster.yaml") }

// startAgent starts the agent of a host until stop is called or the test ends.
func (b *rangeBed) startAgent(host, jobs int) (stop func() error) {
	b.t.Helper()
	cfg := &cluster.Agent{Socket: b.sockets[host], Jobs: []cluster.AgentJob{{Name: "hot", Cluster: b.file(),
		Workers: slices.Repeat([]uint16{uint16(1 + host)}, jobs)}}}
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- runAgent(ctx, cfg, b.log.logger(), func() { close(ready) }, func() error { return nil })
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		b.t.Fatal(err)
	}
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	b.t.Cleanup(func() {
		if err := stop(); err != nil {
			b.t.Error(err)
		}
	})
	return stop
}

// dial opens a session at a host, which owns the job or not.
func (b *rangeBed) dial(host int, job string, owner bool) (*agentclient.Client, error) {
	hello := agentproto.Hello{Job: job, Features: agentproto.FeatureHarvest, Owner: owner, BufferBytes: 1 << 16}
	c, err := agentclient.Dial(soon(b.t), b.sockets[host], hello)
	if err == nil {
		b.t.Cleanup(func() { _ = c.Conn().Close() })
	}
	return c, err
}

func (b *rangeBed) mustDial(host int, job string, owner bool) *agentclient.Client {
	b.t.Helper()
	c, err := b.dial(host, job, owner)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// shortDir is a directory with a path short enough for a socket in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "libra-range-*")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// keySums adds up harvests by key.
type keySums map[uint64][]float64

func (sums keySums) add(t *testing.T, keys []uint64, rows []float32) {
	t.Helper()
	if !slices.IsSorted(keys) || len(slices.Compact(slices.Clone(keys))) != len(keys) {
		t.Errorf("the keys of a harvest are not ascending: %v", keys)
	}
	for i, key := range keys {
		row := sums[key]
		if row == nil {
			row = make([]float64, rangeDim)
			sums[key] = row
		}
		for j := range row {
			row[j] += float64(rows[i*rangeDim+j])
		}
	}
}

// Two hosts' clients push to two jobs while frames are lost, duplicated and reordered. The owners
// of the jobs, one on each host, get the exact sums of all of them in their harvests.
func TestOwnersGetTheSums(t *testing.T) {
	const pushes, clients = 200, 2
	b := newRangeBed(t, 2, func(c *cluster.Config) {
		c.Faults = cluster.Faults{Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Seed: 3}
	})
	owners := []*agentclient.Client{b.mustDial(0, "hot/0", true), b.mustDial(1, "hot/1", true)}
	var pushing sync.WaitGroup
	for host := range 2 {
		for client := range clients {
			for job := range owners {
				pushing.Go(func() {
					c, err := b.dial(host, fmt.Sprintf("hot/%d", job), false)
					if err != nil {
						t.Error(err)
						return
					}
					keys, grads := make([]uint64, 40), make([]float32, 40*rangeDim)
					for n := range pushes {
						for i := range keys {
							keys[i] = rangeKey((i*11 + n) % rangeRows)
							grads[i*rangeDim], grads[i*rangeDim+1] = float32(host+2*client+1), float32(job-2)
						}
						if _, err := c.Push(t.Context(), keys, grads); err != nil {
							t.Error(err)
							return
						}
					}
					if err := c.Flush(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
	want := keySums{}
	for n := range pushes {
		for i := range 40 {
			row := want[rangeKey((i*11+n)%rangeRows)]
			if row == nil {
				row = make([]float64, rangeDim)
				want[rangeKey((i*11+n)%rangeRows)] = row
			}
			row[0] += 1 + 2 + 3 + 4
			row[1] += 4
		}
	}
	over := make(chan struct{})
	go func() { pushing.Wait(); close(over) }()
	var harvesting sync.WaitGroup
	for job, owner := range owners {
		harvesting.Go(func() {
			got, harvests := keySums{}, 0
			take := func(now bool) {
				keys, rows, err := owner.Harvest(t.Context(), now)
				if err != nil {
					t.Error(err)
				}
				if len(keys) == 0 && !now {
					t.Errorf("job %d: a harvest that was not asked for at once is empty", job)
				}
				got.add(t, keys, rows)
				harvests++
			}
			take(false)
			for pushes := true; pushes; {
				select {
				case <-over:
					pushes = false
				default:
				}
				take(true)
			}
			for key, row := range want {
				for j := range row {
					if w := row[j]; j == 1 && got[key][j] != w*float64(job-2) || j == 0 && got[key][j] != w {
						t.Errorf("job %d: key %d has the sums %v, want %v", job, key, got[key], row)
					}
				}
			}
			if len(got) != len(want) {
				t.Errorf("job %d: %d rows have sums, want %d", job, len(got), len(want))
			}
			t.Logf("job %d: %d harvests", job, harvests)
		})
	}
	harvesting.Wait()
}

// A job of a range begins with its owner and ends with it, and then may have another one, at this
// host or another.
func TestJobEndsWithItsOwner(t *testing.T) {
	b := newRangeBed(t, 1, nil)
	for life, host := range []int{0, 1, 1, 0} {
		owner := b.mustDial(host, "hot/0", true)
		pushers := []*agentclient.Client{b.mustDial(0, "hot/0", false), b.mustDial(1, "hot/0", false)}
		if _, err := b.dial(host, "hot/0", true); !errors.Is(err, agentproto.Owned) {
			t.Errorf("a second owner on the same host: %v", err)
		}
		for i, c := range pushers {
			grads := []float32{float32(1 + i), float32(life)}
			if _, err := c.Push(t.Context(), []uint64{rangeKey(5)}, grads); err != nil {
				t.Fatal(err)
			}
			if err := c.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		keys, sums, err := owner.Harvest(t.Context(), true)
		if err != nil || !slices.Equal(keys, []uint64{rangeKey(5)}) || !slices.Equal(sums, []float32{3, float32(2 * life)}) {
			t.Errorf("life %d: keys %v, sums %v: %v", life, keys, sums, err)
		}
		if keys, _, err := owner.Harvest(t.Context(), true); err != nil || len(keys) != 0 {
			t.Errorf("life %d: another harvest has keys %v: %v", life, keys, err)
		}
		_ = owner.Conn().Close()
		for i, c := range pushers {
			var err error
			for err == nil {
				err = c.Flush(soon(t))
			}
			if !errors.Is(err, agentproto.JobEnded) {
				t.Errorf("life %d: pusher %d has ended with %v", life, i, err)
			}
		}
	}
}

// An owner may come to a host that takes part in the job of the one before, and has not heard of
// its end.
func TestOwnersFollowEachOther(t *testing.T) {
	b := newRangeBed(t, 1, nil)
	owner := b.mustDial(0, "hot/0", true)
	for life := 1; life < 10; life++ {
		host := life % 2
		if c := b.mustDial(host, "hot/0", false); life%3 == 0 {
			if _, err := c.Push(t.Context(), []uint64{rangeKey(1)}, []float32{1, 1}); err != nil {
				t.Fatal(err)
			}
		}
		_ = owner.Conn().Close()
		owner = b.mustDial(host, "hot/0", true)
		pusher := b.mustDial(host, "hot/0", false)
		for n := range 3 {
			if _, err := pusher.Push(t.Context(), []uint64{rangeKey(2)}, []float32{1, 2}); err != nil {
				t.Fatalf("life %d: %v", life, err)
			}
			if err := pusher.Flush(t.Context()); err != nil {
				t.Fatalf("life %d: %v", life, err)
			}
			keys, sums, err := owner.Harvest(t.Context(), true)
			if err != nil || !slices.Equal(keys, []uint64{rangeKey(2)}) || !slices.Equal(sums, []float32{1, 2}) {
				t.Fatalf("life %d: harvest %d has the keys %v, sums %v: %v", life, n, keys, sums, err)
			}
		}
	}
}

// What clients of a range cannot have is refused by name.
func TestRangeRefusals(t *testing.T) {
	t.Parallel()
	b := newRangeBed(t, 2, nil)
	for job, c := range map[string]struct {
		owner bool
		code  agentproto.Code
		says  string
	}{
		"hot":    {code: agentproto.NoJob, says: "hot/0 to hot/1"},
		"hot/2":  {code: agentproto.NoJob, says: "the range hot has 2 jobs"},
		"hot/-1": {code: agentproto.NoJob, says: "the range hot has 2 jobs"},
		"hot/00": {code: agentproto.NoJob, says: "the range hot has 2 jobs"},
		"hot/1":  {code: agentproto.NotOpen, says: "no job 11"},
	} {
		if _, err := b.dial(0, job, c.owner); !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", job, err, c.says)
		}
	}
	owner := b.mustDial(0, "hot/0", true)
	if _, err := b.dial(1, "hot/0", true); !errors.Is(err, agentproto.NotOpen) || !strings.Contains(err.Error(), "job 10 exists: its owner at") {
		t.Errorf("an owner on another host: %v", err)
	}
	pusher := b.mustDial(0, "hot/0", false)
	var failed *agentclient.Failed
	if _, _, err := pusher.Harvest(t.Context(), true); !errors.As(err, &failed) || failed.Status != agentproto.NotOwner {
		t.Errorf("a harvest of a client that does not own the job: %v", err)
	}
	if err := pusher.Pull(t.Context(), []uint64{rangeKey(0)}, make([]float32, rangeDim)); !errors.As(err, &failed) || failed.Status != agentproto.NoServer || failed.KeyKnown {
		t.Errorf("a pull: %v", err)
	}
	if _, err := pusher.Push(t.Context(), []uint64{rangeKey(0), 1, rangeKey(1)}, make([]float32, 3*rangeDim)); err != nil {
		t.Fatal(err)
	}
	if err := pusher.Flush(t.Context()); !errors.As(err, &failed) || failed.Status != agentproto.NoServer || failed.Key != 1 || !failed.KeyKnown {
		t.Errorf("a push of a cold row: %v", err)
	}
	if _, _, err := pusher.Reduce(t.Context(), 0); !errors.As(err, &failed) || failed.Status != agentproto.BadMode {
		t.Errorf("a reduce: %v", err)
	}
	if keys, _, err := owner.Harvest(t.Context(), true); err != nil || len(keys) > 0 {
		t.Errorf("after refused pushes the harvest has %v: %v", keys, err)
	}
}

// A file without a hot set, as libra glm takes it, is refused for a range.
func TestRangeNeedsAHotSet(t *testing.T) {
	from := &cluster.AgentJob{Cluster: "c.yaml", Workers: []uint16{1}}
	if _, err := (AgentMachine{}).openRange(from, Env{Config: &cluster.Config{}}); err == nil || !strings.Contains(err.Error(), "job.hot_set: c.yaml names none, and jobs of agents need one") {
		t.Error(err)
	}
}

// The numbers of a range's jobs may go up to the last one, and not beyond.
func TestRangeEndsAtTheLastJob(t *testing.T) {
	c := newCluster(t, 1)
	c.Job.ID = aggregator.MaxJobs - 2
	from := &cluster.AgentJob{Name: "hot", Cluster: "c.yaml", Workers: []uint16{1, 1}}
	r, err := (AgentMachine{}).openRange(from, Env{Config: c, Log: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.closeRange(); err != nil {
		t.Error(err)
	}
	from.Workers = append(from.Workers, 1)
	const want = "3 jobs from job.id 254 on end at 256, and jobs at 255: lower job.id in c.yaml, or list fewer workers"
	if _, err := (AgentMachine{}).openRange(from, Env{Config: c, Log: testLog(t)}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

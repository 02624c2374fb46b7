// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

// roundsOf returns the configuration of one of the workers 7, 4 and 9 of job 5.
func (l *libras) roundsOf(worker uint16) RoundsConfig {
	return RoundsConfig{
		Job:  aggregator.JobConfig{ID: 5, Mode: aggregator.Sync, Arithmetic: aggregator.Fixed, Exp: -8, Slots: 44, MaxStripes: 2},
		What: "8 numbers", Workers: []uint16{7, 4, 9}, Worker: worker,
		From:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + worker)}), 19522),
		Aggregator: netip.MustParseAddrPort(grpctest.Address), Dial: []grpc.DialOption{l.Dialer()}, Log: quiet,
	}
}

// joinRounds joins workers at the same time, each after its time.
func joinRounds(t *testing.T, cfgs []RoundsConfig, after ...time.Duration) []*Rounds {
	t.Helper()
	all := make([]*Rounds, len(cfgs))
	var group sync.WaitGroup
	for i, cfg := range cfgs {
		group.Go(func() {
			time.Sleep(after[i])
			var err error
			if all[i], err = JoinRounds(t.Context(), cfg); err != nil {
				t.Errorf("worker %d: %v", cfg.Worker, err)
			}
		})
	}
	if group.Wait(); t.Failed() {
		t.FailNow()
	}
	return all
}

// The lowest worker creates the job, whenever it comes; all enter together, learn the same
// positions, and the job ends when the last has left.
func TestJoinRounds(t *testing.T) {
	for _, after := range [][]time.Duration{{0, 0, 0}, {0, 3 * time.Second, time.Second}, {5 * time.Second, 0, 20 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			l := startAggregator(t)
			all := joinRounds(t, []RoundsConfig{l.roundsOf(7), l.roundsOf(4), l.roundsOf(9)}, after...)
			first, err := all[0].Members(t.Context())
			if err != nil || !slices.Equal(slices.Sorted(slices.Values(first)), []uint16{4, 7, 9}) {
				t.Errorf("%v, %v", first, err)
			}
			for _, r := range all[1:] {
				if members, err := r.Members(t.Context()); err != nil || !slices.Equal(members, first) || r.Epoch != all[0].Epoch || r.Err() != nil {
					t.Errorf("%v, %v, epoch %d, %v", members, err, r.Epoch, r.Err())
				}
			}
			jobs := l.stats(t).Jobs
			if len(jobs) != 1 || jobs[0].Workers != 3 || jobs[0].Slots != 44 || jobs[0].Exponent != -8 || jobs[0].Mode != pb.Mode_MODE_SYNC {
				t.Errorf("%+v", jobs)
			}
			left := make(chan struct{})
			go func() {
				all[1].Leave() // the lowest
				close(left)
			}()
			time.Sleep(2 * time.Second)
			all[0].Leave()
			time.Sleep(2 * time.Second)
			select {
			case <-left:
				t.Error("the job ends before the last has left")
			default:
			}
			if members, err := all[2].list(t.Context()); err != nil || len(members) != 3 || members[2].Sender == 7 && !members[2].Left {
				t.Errorf("%v, %v", members, err)
			}
			all[2].Leave()
			all[2].Leave()
			<-left
			if jobs := l.stats(t).Jobs; len(jobs) != 0 {
				t.Errorf("%+v remain", jobs)
			}
			if _, err := all[1].Members(t.Context()); err == nil {
				t.Error("a worker that has left is told the members")
			}
		})
	}
}

// The lowest worker creates a job of the mode that all have.
func TestJoinAckedRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		var cfgs []RoundsConfig
		for _, id := range []uint16{4, 7, 9} {
			cfg := l.roundsOf(id)
			cfg.Job.Mode = aggregator.Acked
			cfgs = append(cfgs, cfg)
		}
		all := joinRounds(t, cfgs, 0, 0, 0)
		if jobs := l.stats(t).Jobs; len(jobs) != 1 || jobs[0].Mode != pb.Mode_MODE_ACKED || jobs[0].Workers != 3 {
			t.Errorf("%+v", jobs)
		}
		for _, r := range slices.Backward(all) {
			r.Leave()
		}
	})
}

// When the lowest worker dies, the others are told that the job is lost; those that are started
// anew enter the next job, not this one.
func TestRoundsAfterADeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		lost := make(chan error, 3)
		var cfgs []RoundsConfig
		for _, id := range []uint16{4, 7, 9} {
			cfg := l.roundsOf(id)
			cfg.Lost = func(err error) { lost <- err }
			cfgs = append(cfgs, cfg)
		}
		old := joinRounds(t, cfgs, 0, 0, 0)
		old[0].end(errors.New("killed"))
		if err := old[0].conn.Close(); err != nil {
			t.Error(err)
		}
		fresh := joinRounds(t, []RoundsConfig{l.roundsOf(4), l.roundsOf(7), l.roundsOf(9)}, 0, 0, 0)
		for range 2 {
			if err := <-lost; !strings.Contains(err.Error(), "withdrew this worker: job 5 was removed") {
				t.Error(err)
			}
		}
		if old[1].Err() == nil || old[2].Err() == nil {
			t.Errorf("%v, %v", old[1].Err(), old[2].Err())
		}
		if want := "switch daemon: withdrew this worker: job 5 was removed"; !strings.Contains(old[1].Err().Error(), want) {
			t.Errorf("%v, want %q", old[1].Err(), want)
		}
		for _, r := range fresh {
			if r.Epoch == old[0].Epoch || r.Err() != nil {
				t.Errorf("epoch %d, %v", r.Epoch, r.Err())
			}
		}
		for _, r := range slices.Concat(old[1:], fresh[1:], fresh[:1]) {
			r.Leave()
		}
	})
}

// What a worker may not do, and what it waits for in vain, is said with what to do.
func TestRefusedRounds(t *testing.T) {
	for want, change := range map[string]func(*RoundsConfig){
		"Worker 8 is not among the Workers [7 4 9]":                   func(c *RoundsConfig) { c.Worker = 8 },
		"Workers [7 4 7] has a number twice":                          func(c *RoundsConfig) { c.Workers = []uint16{7, 4, 7} },
		"Workers has 65 numbers, at most 64":                          func(c *RoundsConfig) { c.Workers = append(many(64), 7) },
		"Job has mode combine, which has no rounds":                   func(c *RoundsConfig) { c.Job.Mode = aggregator.Combine },
		"From invalid AddrPort is no address of one host with a port": func(c *RoundsConfig) { c.From = netip.AddrPort{} },
		"From 0.0.0.0:1 is no address":                                func(c *RoundsConfig) { c.From = netip.MustParseAddrPort("0.0.0.0:1") },
		"Aggregator 1.2.3.4:0 is no address with a port":              func(c *RoundsConfig) { c.Aggregator = netip.MustParseAddrPort("1.2.3.4:0") },
		"Limit -1s is negative":                                       func(c *RoundsConfig) { c.Limit = -time.Second },
		"worker 4 has not created job 5 within 2s: start it":          func(c *RoundsConfig) { c.Limit = 2 * time.Second },
		"workers [7 9] have not joined job 5 within 3s: start them":   func(c *RoundsConfig) { c.Worker, c.Limit = 4, 3*time.Second },
		"stripes: 11, this aggregator takes at most 10 in a frame":    func(c *RoundsConfig) { c.Worker, c.Job.MaxStripes = 4, 11 },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := startAggregator(t)
			cfg := l.roundsOf(7)
			change(&cfg)
			_, err := JoinRounds(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
			if jobs := l.stats(t).Jobs; len(jobs) != 0 {
				t.Errorf("%s: %+v remain", want, jobs)
			}
		})
	}
}

func many(n uint16) (ids []uint16) {
	for id := range n {
		ids = append(ids, 100+id)
	}
	return ids
}

// Workers whose settings differ do not join the same job; the text says in which way.
func TestRoundsWithOtherSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startAggregator(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			cfg := l.roundsOf(4)
			cfg.Limit = time.Hour
			_, err := JoinRounds(ctx, cfg)
			ended <- err
		}()
		const job = "8 numbers, by 3 workers in mode sync with fixed arithmetic, exponent -8, 44 slots in groups of 2 stripes"
		for want, change := range map[string]func(*RoundsConfig){
			"9 numbers, by":               func(c *RoundsConfig) { c.What = "9 numbers" },
			"in mode acked with":          func(c *RoundsConfig) { c.Job.Mode = aggregator.Acked },
			"with exact arithmetic":       func(c *RoundsConfig) { c.Job.Arithmetic = aggregator.Exact },
			"exponent -7":                 func(c *RoundsConfig) { c.Job.Exp = -7 },
			"66 slots":                    func(c *RoundsConfig) { c.Job.Slots = 66 },
			"44 slots in groups of 1 str": func(c *RoundsConfig) { c.Job.MaxStripes = 1 },
			"8 numbers, by 2 workers":     func(c *RoundsConfig) { c.Workers = []uint16{7, 4} },
		} {
			cfg := l.roundsOf(7)
			change(&cfg)
			began := time.Now()
			_, err := JoinRounds(t.Context(), cfg)
			if err == nil || !strings.Contains(err.Error(), `join: worker 7 is for "`) || !strings.Contains(err.Error(), want) ||
				!strings.Contains(err.Error(), `, job 5 for "`+job+`": start all workers with the same settings`) {
				t.Errorf("%v, want %q", err, want)
			}
			if took := time.Since(began); took > settingsLimit+time.Second {
				t.Errorf("after %v", took)
			}
		}
		_, _, err := joinAs(t.Context(), l.client, joinRequest())
		wants(t, "a worker with a hot set", err, codes.FailedPrecondition, `job 5 is for "`+job+`", without a hot set: give worker 1 the number of its own job`)
		stop()
		if err := <-ended; err == nil {
			t.Error("the first worker enters alone")
		}
	})
}

// The members of a job are told to its workers, and positions exist in jobs with rounds only.
func TestMembers(t *testing.T) {
	l := startAggregator(t)
	members := func(job, sender uint32, token []byte) error {
		_, err := l.client.Members(t.Context(), &pb.MembersRequest{Job: job, Sender: sender, Token: token})
		return err
	}
	wants(t, "of no job", members(6, 1, nil), codes.NotFound)
	l.create(t, spec())
	_, a, err := joinAs(t.Context(), l.client, joinRequest())
	if err != nil {
		t.Fatal(err)
	}
	wants(t, "without rounds", members(5, 1, a.Token), codes.FailedPrecondition, "job 5 has no rounds")
	rounds := spec()
	rounds.Job, rounds.Mode, rounds.Workers = 6, pb.Mode_MODE_SYNC, 2
	l.create(t, rounds)
	req := joinRequest()
	req.Job = 6
	if _, a, err = joinAs(t.Context(), l.client, req); err != nil {
		t.Fatal(err)
	}
	wants(t, "without a token", members(6, 1, nil), codes.PermissionDenied)
	wants(t, "of another sender", members(6, 2, a.Token), codes.PermissionDenied)
	if err := members(6, 1, a.Token); err != nil {
		t.Error(err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// What cannot be a child is refused, with the reason, and nothing has changed.
func TestRefusedChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newTree(t)
		other := spec()
		other.Job, other.Slots = 6, 50
		child := all.at[1].create(t, other)
		lut := spec()
		lut.Job, lut.Arithmetic, lut.Exponent = 7, pb.Arithmetic_ARITHMETIC_LUT, nil
		rounds := spec()
		rounds.Job, rounds.Mode, rounds.Workers = 8, pb.Mode_MODE_SYNC, 1
		byLUT, byRounds := all.at[0].create(t, lut), all.at[0].create(t, rounds)
		refused := func(want string, parent *Owned, child *Owned, ranks ...*pb.RankRun) {
			t.Helper()
			if err := parent.AddChild(t.Context(), childAt, child, ranks); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		refused("50 slots from rank 51 on are not among its 100", all.jobs[0], child, &pb.RankRun{Slots: 50, First: 51})
		refused("0 slots", all.jobs[0], child, &pb.RankRun{})
		refused("it would have none of its slots", all.jobs[0], child)
		refused("a job cannot be its own child", all.jobs[0], all.jobs[0], &pb.RankRun{Slots: 100})
		refused("sums of lut arithmetic cannot be added here", byLUT, child, childRanks...)
		refused("in sync mode the sums go to the workers", byRounds, child, childRanks...)
		stranger := *child
		stranger.Job = &pb.Job{Instance: 1, Key: all.jobs[0].Key}
		refused("wrong job key", all.jobs[0], &stranger, childRanks...)
		refused("wrong job key", &stranger, child, childRanks...)
		at := all.at[1].service
		if _, err := at.AddChild(t.Context(), &pb.AddChildRequest{Job: 6, Key: child.Key, Control: "nowhere"}); err == nil ||
			!strings.Contains(err.Error(), "an address with a port") {
			t.Errorf("no address: %v", err)
		}
		alone := startAggregator(t)
		refused("this daemon cannot reach others", alone.create(t, spec()), child, childRanks...)
		_, err := all.jobs[0].RemoveChild(t.Context(), child)
		if err == nil || !strings.Contains(err.Error(), "has no child of instance") {
			t.Errorf("removing what is none: %v", err)
		}

		// One that has been pushed to is none any more.
		req := joinRequest()
		req.Job = 6
		_, a, err := joinAs(t.Context(), all.at[1].client, req)
		if err != nil {
			t.Fatal(err)
		}
		pushTo(t, all.at[1], 6, uint16(a.Epoch))
		refused("it has sums from before it was a child", all.jobs[0], child, childRanks...)
		got := newSums()
		h, stop := harvester(t, child, got.apply)
		if err := h.Now(t.Context()); err != nil || got.rank(0) != units(t, 1) {
			t.Errorf("its own harvest: %v, a sum of %d", err, got.rank(0))
		}
		_ = stop()
	})
}

// Jobs become no parents of each other in a circle once their owner has harvested one, which goes
// on. Whoever has the keys of all may do it before: then their owner is told to create them again,
// other jobs are harvested, and these can be removed.
func TestCirclesOfChildren(t *testing.T) {
	for _, before := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var first *libras
			all := newTree(t, func(of int, cfg *AggregatorConfig) {
				if of == 2 {
					cfg.Dial = func(context.Context, netip.AddrPort) (*grpc.ClientConn, error) {
						return first.dial(t, access.Security{}, "192.0.2.9").ClientConn, nil
					}
				}
			})
			first = all.at[0]
			closeCircle := func() error {
				return all.jobs[2].AddChild(t.Context(), childAt, all.jobs[0], []*pb.RankRun{{Slots: 9}})
			}
			if before {
				if err := closeCircle(); err != nil {
					t.Fatal(err)
				}
			}
			got := newSums()
			h, stop := harvester(t, all.jobs[0], got.apply)
			err := h.Now(t.Context())
			if before != (err != nil) || before && !strings.Contains(err.Error(), "these do not match; create the job again") {
				t.Errorf("a harvest, in a circle %v: %v", before, err)
			}
			synctest.Wait() // it is acknowledged
			if !before {
				if err := closeCircle(); err == nil || !strings.Contains(err.Error(), "these do not match") {
					t.Errorf("a circle: %v", err)
				}
				for to := range 3 {
					all.push(t, to, 3, 1)
				}
				if err := h.Now(t.Context()); err != nil {
					t.Error(err)
				}
				all.check(t, got)
			}
			other := spec()
			other.Job = 6
			theirs, stopTheirs := harvester(t, first.create(t, other), newSums().apply)
			if err := theirs.Now(t.Context()); err != nil {
				t.Errorf("a harvest of another job: %v", err)
			}
			_ = stopTheirs()
			for _, j := range all.jobs {
				if err := j.Remove(t.Context()); err != nil {
					t.Error(err)
				}
			}
			_ = stop()
			for i, at := range all.at {
				if jobs := at.stats(t).Jobs; i > 0 && len(jobs) > 0 || i == 0 && len(jobs) != 1 {
					t.Errorf("aggregator %d has jobs %v", i, jobs)
				}
			}
		})
	}
}

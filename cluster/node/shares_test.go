// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/packer/share"
)

// A training whose hot set is divided among three jobs of the switch ends with the weights of one
// process, bit for bit, though frames are lost, and each of the jobs is used and removed.
func TestSharesTrainToTheSameWeights(t *testing.T) {
	for _, arithmetic := range []string{"exact", "fixed"} {
		c := newCluster(t, 2)
		c.Job.IDs, c.Job.Arithmetic = []uint16{6, 7}, arithmetic
		c.Faults = cluster.Faults{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01, Seed: 5}
		c.Switch.LaneAligned = arithmetic == "fixed"
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		startSwitch(t, c)
		out := mustTrain(t, c)
		if want := hash(reference(t, c)); arithmetic == "exact" && out.server.WeightsSHA256 != want {
			t.Errorf("the weights are %s, those of one process %s", out.server.WeightsSHA256, want)
		}
		sent := out.workers[0].HotPairs + out.workers[1].HotPairs
		if out.server.HotPairs != sent || sent == 0 {
			t.Errorf("%s: the switch has summed %d pairs, the workers have sent it %d", arithmetic, out.server.HotPairs, sent)
		}
		if left := jobsOf(t, c); len(left) > 0 {
			t.Errorf("%s: jobs stay at the switch: %v", arithmetic, left)
		}
	}
}

// jobsOf lists the jobs of a switch.
func jobsOf(t *testing.T, c *cluster.Config) (ids []uint32) {
	t.Helper()
	conn, err := access.Dial(t.Context(), access.TheSwitch(), c.Switch.Control, access.Security{}, time.Minute, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stats, err := pb.NewAggregatorClient(conn).Stats(t.Context(), &pb.StatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range stats.Jobs {
		ids = append(ids, j.Job)
	}
	return ids
}

// If the switch refuses one share, the server ends with its field, and the shares before it are
// removed.
func TestRefusedShareLeavesNothing(t *testing.T) {
	c := newCluster(t, 1)
	c.Job.IDs = []uint16{6, 7}
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		t.Fatal(err)
	}
	shares, err := c.Job.Shares(hot)
	if err != nil {
		t.Fatal(err)
	}
	c.Switch.Slots = shares.Slots(0) + shares.Slots(1)
	startSwitch(t, c)
	_, err = RunServer(soon(t), Env{Config: c, Log: testLog(t)})
	if err == nil || !strings.Contains(err.Error(), "share 2 of the hot set (job.ids[1]: 7)") ||
		!strings.Contains(err.Error(), "remove one, or give the aggregator more (slots of its entry in the cluster file)") {
		t.Errorf("the server ends with %v", err)
	}
	if left := jobsOf(t, c); len(left) > 0 {
		t.Errorf("jobs stay at the switch: %v", left)
	}
}

// A worker whose file divides the hot set otherwise is refused, with the field.
func TestSharesAreAgreedOn(t *testing.T) {
	c := newCluster(t, 1)
	c.Job.IDs = []uint16{6, 7}
	startSwitch(t, c)
	out := trainCluster(soon(t), t, c, hooks{change: func(_ uint16, c *cluster.Config) { c.Job.IDs = []uint16{7, 6} }})
	if err := out.errs[0]; err == nil || !strings.Contains(err.Error(), "job.ids: [7 6] here, [6 7] at the server") {
		t.Errorf("the worker ends with %v", err)
	}
}

// When an operator removes one of the shares, the job ends, by the name of its switch if a plan has
// several.
func TestRemovedShareEndsTheJob(t *testing.T) {
	shared := newCluster(t, 2)
	shared.Job.IDs = []uint16{6}
	startSwitch(t, shared)
	removedShareEndsTheJob(t, shared, shared.Switch.Control, 6, "lost job 6: ")
	planned := newFabric(t, 3, 1)
	startFabric(t, planned)
	at := planned.Switches[2]
	removedShareEndsTheJob(t, planned, at.Control, planned.Job.ID, fmt.Sprintf("switch %q at %s: lost job 5: ", at.Name, at.Control))
}

func removedShareEndsTheJob(t *testing.T, c *cluster.Config, at netip.AddrPort, job uint16, want string) {
	t.Helper()
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	serving, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := RunServer(ctx, Env{Config: c, Log: testLog(t), Ready: func() { close(serving) }})
		ended <- err
	}()
	select {
	case <-serving:
	case err := <-ended:
		t.Fatal(err)
	}
	conn, err := access.Dial(ctx, access.TheSwitch(), at, access.Security{}, time.Minute, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pb.NewAggregatorClient(conn).RemoveJob(ctx, &pb.RemoveJobRequest{Job: uint32(job)}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, control.ErrRemoved) || !strings.Contains(err.Error(), want) {
		t.Errorf("the server ends with %v, want %q", err, want)
	}
}

// The job of a share has the slots and the fingerprint of that share: one may be longer or shorter
// than another.
func TestJobsOfUnequalShares(t *testing.T) {
	const rows, dim = 130, 2 // the last of five parts is shorter
	hot := [32]byte{7}
	plan := share.Plan{PartRows: 30, Shares: [][]uint32{{0}, {1, 2}, {4}}, To: []int{0, 1, 1, share.Cold, 2}}
	shares, err := share.New(rows, dim, hot, plan)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint32{30 * dim, 60 * dim, 10 * dim} {
		spec := &pb.JobSpec{Slots: rows * dim, HotSet: hot[:]}
		shareSpec(spec, shares, i)
		if of := shares.Fingerprint(i); spec.Slots != want || !bytes.Equal(spec.HotSet, of[:]) {
			t.Errorf("share %d: %d slots of hot set %x, want %d of %x", i, spec.Slots, spec.HotSet, want, of)
		}
	}
}

// Ranks of a share's harvest become those of the hot set, and one beyond the share is refused.
func TestHarvestOfAShareInRanks(t *testing.T) {
	keys := make([]uint64, 130) // in parts of three
	for i := range keys {
		keys[i] = uint64(i)
	}
	hot, err := packer.NewHotSet(1, keys, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	shares, err := share.Divide(hot.Len(), hot.Dim(), hot.Fingerprint(), 2)
	if err != nil {
		t.Fatal(err)
	}
	s := &openShare{index: 1, of: shares}
	h := &control.Harvest{Ranks: []uint32{0, 2, 3}, Sums: []int64{1, 2, 3}}
	if err := s.toHotSet(h); err != nil || h.Ranks[0] != 3 || h.Ranks[1] != 5 || h.Ranks[2] != 9 {
		t.Errorf("ranks %v, %v", h.Ranks, err)
	}
	h = &control.Harvest{Number: 4, Ranks: []uint32{uint32(shares.Slots(1))}, Sums: []int64{1}}
	if err := s.toHotSet(h); err == nil || !strings.Contains(err.Error(), "harvest 4 of share 1 contains a sum of rank") {
		t.Errorf("a rank beyond the share: %v", err)
	}
}

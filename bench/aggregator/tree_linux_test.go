// SPDX-License-Identifier: Apache-2.0

package aggregator

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/bench/child"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/linux/proc"
	"github.com/libra-ina/libra/internal/linux/sys"
	"github.com/libra-ina/libra/internal/num/zipf"
	"github.com/libra-ina/libra/internal/report/experiment"
	"github.com/libra-ina/libra/internal/test/bedtest"
	"github.com/libra-ina/libra/packer/share"
	"github.com/libra-ina/libra/ps"
)

// switchesArgument makes the test binary the process of all switches of BenchmarkTree.
const switchesArgument = "switches-of-a-tree"

func TestMain(m *testing.M) {
	bedtest.RunAs(switchesArgument, func(args []string) error { return child.Main(args, runSwitches) })
	os.Exit(m.Run())
}

// treeSwitches is how many switches have shares with all parts.
const treeSwitches = 3

// treeLoad describes the sums that a switch holds at the end of a step. If Updates is positive,
// that many updates are drawn from a Zipf distribution, and the slots that they reach have sums.
// Otherwise each slot has one with probability Chance. Switches with the same number have equal
// sums in both fabrics.
type treeLoad struct {
	What    string
	Slots   int
	Chance  float64
	Zipf    float64
	Updates float64
}

func (l treeLoad) fill(plane *heldBank, rng *rand.Rand) {
	if l.Updates > 0 {
		plane.fill(zipf.New(allKeys, l.Zipf), l.Updates, rng)
		return
	}
	for slot := range l.Slots {
		if rng.Float64() < l.Chance {
			plane.put(slot, rng)
		}
	}
}

// What the switches are asked for, and answer with their addresses.
const (
	opReach = "reach"
	opPush  = "push" // from then on there are sums
)

// runSwitches serves the switches of a fabric without parents, and as many of one with, until it is
// told to end.
func runSwitches(ctx context.Context, load treeLoad) error {
	var at []netip.AddrPort
	var planes []*heldBank
	for i := range 2 * treeSwitches {
		plane, err := newHeldBank(load.Slots)
		if err != nil {
			return err
		}
		load.fill(plane, rand.New(rand.NewPCG(uint64(i%treeSwitches), 1)))
		plane.empty.Store(true)
		one, end, err := plane.serve(ctx, slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		defer end()
		at, planes = append(at, one), append(planes, plane)
	}
	return child.Serve(ctx, func(_ context.Context, op string, _ json.RawMessage) (any, error) {
		if op == opPush {
			for _, plane := range planes {
				plane.empty.Store(false)
			}
		}
		return at, nil
	})
}

// fabric is the shares of a job at several switches, as the server that harvests them has them.
type fabric struct {
	harvesters []*control.Harvester // of the shares without a parent
	keys       []uint64
	applying   sync.Mutex
	store      *ps.Store
	sums       int // in all harvests
}

// newFabric creates a share with all parts at each switch. The first is the parent of the others,
// or all have none.
func newFabric(b *testing.B, at []netip.AddrPort, slots int, tree bool) *fabric {
	b.Helper()
	fail := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	plan := share.Plan{PartRows: share.PartRows(slots, share.MaxParts)}
	plan.To = make([]int, (slots+plan.PartRows-1)/plan.PartRows)
	all := make([]uint32, len(plan.To))
	for part := range all {
		all[part] = uint32(part)
	}
	for range at {
		plan.Shares = append(plan.Shares, all)
	}
	shares, err := share.New(slots, 1, [32]byte{}, plan)
	fail(err)
	f := &fabric{keys: hotKeys(slots)}
	f.store, err = newServer()
	fail(err)
	log := slog.New(slog.DiscardHandler)
	var parent *control.Owned
	for _, one := range at {
		owned, conn, err := ownJob(b.Context(), one, slots, log)
		fail(err)
		b.Cleanup(func() { _ = conn.Close() })
		if parent != nil {
			fail(parent.AddChild(b.Context(), one, owned, []*pb.RankRun{{Slots: uint32(slots)}}))
			continue
		}
		if tree {
			parent = owned
		}
		h := control.NewHarvester(owned, func(h *control.Harvest) error {
			for i, local := range h.Ranks { // as the server does with those of shares
				h.Ranks[i], _ = shares.Rank(0, local)
			}
			f.applying.Lock()
			defer f.applying.Unlock()
			f.sums += len(h.Sums)
			_, err := f.store.ApplyHarvest(ps.Harvest{Instance: owned.Instance, Number: h.Number, Ranks: h.Ranks, Sums: h.Sums},
				f.keys)
			return err
		}, log)
		f.harvesters = append(f.harvesters, h)
		go func() { _ = h.Run(b.Context()) }() // steps fail once it has ended
	}
	return f
}

// step takes the sums of all shares at once, and commits.
func (f *fabric) step(ctx context.Context) error {
	taken := make(chan error, len(f.harvesters))
	for _, h := range f.harvesters {
		go func() { taken <- h.Now(ctx) }()
	}
	var err error
	for range f.harvesters {
		err = errors.Join(err, <-taken)
	}
	f.store.Commit()
	return err
}

// treeSteps is how many steps each of the two has in a round.
const treeSteps = 5

// round returns the CPU time that this process, the server, takes for a step, in microseconds.
func (f *fabric) round(b *testing.B) float64 {
	b.Helper()
	before, err := sys.OwnUsage()
	for range treeSteps {
		err = errors.Join(err, f.step(b.Context()))
	}
	after, failed := sys.OwnUsage()
	if err := errors.Join(err, failed); err != nil {
		b.Fatal(err)
	}
	took := after.Since(before)
	return float64(took.User+took.Kernel) / treeSteps / 1e3
}

// BenchmarkTree measures the CPU time that a server takes for a step with three switches that all
// have shares of the same 65,536 slots: the harvests, of all three or of one that is the parent of
// the others, and the commit. The switches are in another process. It reports medians of the
// rounds, in microseconds, and of the ratios in these, and the ratio of the sums in the harvests:
// the fewer slots have sums at several switches, the less a tree saves. Both servers have the same
// weights in the end.
func BenchmarkTree(b *testing.B) {
	for _, load := range []treeLoad{
		{What: "all slots", Chance: 1},
		{What: "Zipf 1.1, 160000 updates", Zipf: 1.1, Updates: 160_000},
		{What: "a quarter at random", Chance: 0.25},
	} {
		load.Slots = aggregator.PageSlots
		b.Run(load.What, func(b *testing.B) { benchmarkTree(b, load) })
	}
}

func benchmarkTree(b *testing.B, load treeLoad) {
	group := proc.NewGroup(b.Context(), proc.Config{})
	defer func() { _ = group.Stop() }()
	switches, err := child.Launch(b.Context(), group, child.Spec{
		Name: "switches", Command: []string{os.Args[0], switchesArgument}, Config: load, Service: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	var at []netip.AddrPort
	if err := switches.Ask(b.Context(), opReach, nil, &at); err != nil {
		b.Fatal(err)
	}
	flat := newFabric(b, at[:treeSwitches], load.Slots, false)
	tree := newFabric(b, at[treeSwitches:], load.Slots, true)
	if err := switches.Ask(b.Context(), opPush, nil, nil); err != nil { // the children have been added
		b.Fatal(err)
	}
	for _, f := range []*fabric{flat, tree} {
		f.round(b) // the store looks the hot rows up
	}
	var flats, trees []float64
	for b.Loop() {
		flats, trees = append(flats, flat.round(b)), append(trees, tree.round(b))
	}
	if flat.store.Hash() != tree.store.Hash() {
		b.Error("the weights differ")
	}
	b.ReportMetric(experiment.Median(flats), "flat-cpu-us/step")
	b.ReportMetric(experiment.Median(trees), "tree-cpu-us/step")
	b.ReportMetric(experiment.Ratios(trees, flats).Median, "tree/flat")
	b.ReportMetric(float64(tree.sums)/float64(flat.sums), "tree/flat-sums")
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// The switches of a plan may have parents. A share at such a switch is then a child of the share of
// its parent that has all its parts, if there is one: that switch harvests it, and its own harvests
// have the sums of both. The server creates and holds all shares, and harvests those without
// parents only. A share keeps its parent for as long as that is open; after that the server
// harvests it.

// harvested lists the shares that the server asks for the sums of some: these, or whose children
// they are.
func harvested(shares []*openShare) (all []*openShare) {
	for _, one := range shares {
		for parent := one.parent.Load(); parent != nil; parent = one.parent.Load() {
			one = parent
		}
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}

// parentsFirst lists shares in an order in which each comes after its parent.
func parentsFirst(shares []*openShare) []*openShare {
	depth := func(one *openShare) (n int) {
		for ; one != nil; one = one.parent.Load() {
			n++
		}
		return n
	}
	all := slices.Clone(shares)
	slices.SortStableFunc(all, func(a, b *openShare) int { return depth(a) - depth(b) })
	return all
}

// addToParents adds shares that are new to their parents, among themselves and those that stay.
func addToParents(ctx context.Context, of *allotment, shares, stay []*openShare) error {
	if of.by == nil {
		return nil
	}
	for _, one := range shares {
		parent, ranks := one.parentAmong(of.by.Parent(one.at), slices.Concat(shares, stay))
		if parent == nil {
			continue
		}
		one.parent.Store(parent) // also if the answer is lost
		at, err := netip.ParseAddrPort(one.control)
		if err == nil {
			err = parent.job.AddChild(ctx, at, one.job, ranks)
		}
		if err != nil {
			return of.refusalOf(one.index, fmt.Errorf("parent %q at %s: %w", parent.at, parent.control, err))
		}
	}
	return nil
}

// parentAmong returns the share at a switch that has all parts of this one, and its ranks there;
// nil if none has.
func (one *openShare) parentAmong(at string, shares []*openShare) (parent *openShare, ranks []*pb.RankRun) {
	for _, other := range shares {
		if at == "" || other.at != at {
			continue
		}
		if runs, ok := one.of.Within(one.index, other.of, other.index); ok {
			for _, r := range runs {
				ranks = append(ranks, &pb.RankRun{Slots: r.Slots, First: r.First})
			}
			return other, ranks
		}
	}
	return nil, nil
}

// harvestOrphans makes the server harvest the shares whose parents are to be closed. A step that
// ends meanwhile asks both: the share answers when its last parent has, and takes nothing from it
// any more.
func (s *server) harvestOrphans(ctx context.Context, h *harvesting, closing, stay []*openShare) error {
	for _, one := range stay {
		parent := one.parent.Load()
		if !slices.Contains(closing, parent) {
			continue
		}
		err := s.loop.Do(ctx, func() {
			one.parent.Store(nil)
			s.askOthers(h)
		})
		if err != nil {
			return err
		}
		last, err := parent.job.RemoveChild(ctx, one.job)
		if err != nil {
			return err // and the loss of a share ends the job
		}
		one.ResumeAfter(last)
		go s.runHarvests(s.end, h, one)
	}
	return nil
}

// takeFromParents ends that shares are children of others than these, before they are removed: a
// parent that goes on must not lose them. So it has no limit.
func takeFromParents(ctx context.Context, shares []*openShare) (err error) {
	for _, one := range shares {
		if parent := one.parent.Load(); parent != nil && !slices.Contains(shares, parent) {
			_, failed := parent.job.RemoveChild(ctx, one.job)
			err = errors.Join(err, failed)
		}
	}
	return err
}

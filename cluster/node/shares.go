// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer/share"
)

// A hot set may be divided into shares: each is a job of its own at the aggregator, with its own instance,
// harvests and harvest numbers, and ranks that count the share's scalars only. A generation has all of them:
// they are created together, a step takes the sums of all, and the loss of one is that of the aggregator.

// extraShare is one of the jobs of a generation after the first.
type extraShare struct {
	*control.Harvester
	job *control.Owned
}

// openShares creates the shares of a generation after the first, and holds them. If one is refused, the
// caller discards the generation, with those that were created before.
func (s *server) openShares(ctx, holding context.Context, h *harvesting, taken time.Duration) error {
	if s.shares == nil {
		return nil
	}
	for i, id := range s.env.Config.Job.IDs {
		spec, err := jobSpec(s.env.Config, s.hot)
		if err != nil {
			return err
		}
		spec.Job, spec.ServerMacs, spec.UsedEpochs = uint32(id), nil, h.used
		shareSpec(spec, s.shares, 1+i)
		job, err := control.CreateJob(ctx, pb.NewAggregatorClient(h.conn), spec, taken, s.env.Log)
		if err != nil {
			return fmt.Errorf("share %d of the hot set (job.ids[%d]: %d): %w", 1+i, i, id, err)
		}
		job.Silence = h.job.Silence
		h.more = append(h.more, &extraShare{job: job})
		if err := job.Hold(holding, h.noteLost); err != nil {
			return err
		}
	}
	return nil
}

// shareSpec makes the specification of a job with the whole hot set that of a share.
func shareSpec(spec *pb.JobSpec, shares *share.Division, index int) {
	fingerprint := shares.Fingerprint(index)
	spec.Slots, spec.HotSet = uint32(shares.Slots(index)), fingerprint[:]
}

// instances lists the instances of the shares of a generation.
func (h *harvesting) instances() []uint64 {
	all := []uint64{h.job.Instance}
	for _, one := range h.more {
		all = append(all, one.job.Instance)
	}
	return all
}

// moreInstances lists the instances of the shares after the first, as server 0 has created them.
func (s *server) moreInstances() []uint64 {
	h := s.generation.Load()
	if h == nil {
		return nil
	}
	return h.instances()[1:]
}

// takeAll makes the server apply everything that the aggregator has acknowledged, in all shares: it asks them
// at once, and waits for each.
func (h *harvesting) takeAll(ctx context.Context, turn func(what string)) error {
	if len(h.more) == 0 {
		return h.Now(ctx)
	}
	applied := make(chan error, len(h.more))
	for i, one := range h.more {
		go func() {
			turn(fmt.Sprintf("asks for the sums of share %d", 1+i))
			applied <- one.Now(ctx)
		}()
	}
	err := h.Now(ctx)
	for range h.more {
		err = cmp.Or(err, <-applied)
	}
	return err
}

// removeAll ends the jobs of all shares.
func (h *harvesting) removeAll(ctx context.Context) error {
	err := h.job.Remove(ctx)
	for _, one := range h.more {
		err = errors.Join(err, one.job.Remove(ctx))
	}
	return err
}

// toHotSet turns the local ranks of a share's harvest into those of the hot set.
func (s *server) toHotSet(share int, h *control.Harvest) error {
	if s.shares == nil {
		return nil
	}
	for i, local := range h.Ranks {
		rank, ok := s.shares.Rank(share, local)
		if !ok {
			return fmt.Errorf("harvest %d of share %d contains a sum of rank %d, the share has %d", h.Number, share, local,
				s.shares.Slots(share))
		}
		h.Ranks[i] = rank
	}
	return nil
}

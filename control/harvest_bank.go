// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// enoughFrames reports whether at least the job's harvest_frames frames were applied and are in no
// harvest yet.
func (j *job) enoughFrames() (bool, error) {
	c, err := j.plane.JobCounters(j.cfg.ID)
	if err != nil {
		return false, planeError(err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return c.Applied-j.taken >= j.spec.HarvestFrames, nil
}

// freezeBank begins a harvest: it freezes the current bank. If every applied frame is in a harvest
// already, this one is empty and the banks are not swapped.
func (j *job) freezeBank() error {
	now := time.Now()
	c, err := j.plane.JobCounters(j.cfg.ID)
	if err != nil {
		return planeError(err)
	}
	j.mu.Lock()
	left := c.Applied != j.taken
	j.mu.Unlock()
	if left {
		j.swapping = true
		if j.frozen, err = j.plane.Swap(j.cfg.ID); err != nil {
			return planeError(err)
		}
		j.swapping = false
		if j.sums != nil {
			if err = j.addBank(j.frozen); err != nil {
				return err
			}
		}
	}
	j.pending = true
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.first {
		j.interval.addDuration(now.Sub(j.started))
	}
	j.started, j.first = now, false
	j.oldest, j.newest = j.newest, now
	if j.frozen != nil {
		// Not all frames applied until now: some may be in the other bank.
		j.taken += j.frozen.Frames
	}
	j.number++
	return nil
}

// resumeStream continues after the owner's last stream: last is the newest harvest that the owner
// has applied. If a harvest is pending, either the harvest or its acknowledgement was lost.
func (j *job) resumeStream(last uint64) error {
	number := j.harvestStream()
	applied, lost := last == number, last+1 == number && j.pending
	if !applied && !lost {
		return status.Errorf(codes.FailedPrecondition, "job %d: the newest harvest here is %d, and the newest that its server has applied is %d: these do not match; create the job again", j.cfg.ID, number, last)
	}
	if applied && j.pending {
		if err := j.clearHarvest(); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.started, j.first = time.Now(), true // the time before is no harvest interval
	return nil
}

// sendHarvest sends the pending harvest, which answers the requests up to the given number, in
// messages that its owner takes.
func (j *job) sendHarvest(stream harvestStream, request uint64, owner *pb.HarvestBegin) error {
	s := sumsSender{stream: stream, gaps: owner.Gaps, chunk: &pb.HarvestChunk{Number: j.harvestStream()}}
	sums := j.sums // with those of children
	if sums == nil {
		sums = j.frozen
	}
	if sums != nil {
		j.words = slices.Grow(j.words[:0], chunkLen+groupLen)
		s.words = j.words
		var err error
		sums.All(func(first int, slots []int64) bool {
			err = s.addBlock(first, slots)
			return err == nil
		})
		if err != nil {
			return err
		}
		if owner.Marks && j.frozen != nil {
			for some := range slices.Chunk(j.frozen.Marks, chunkMarks) {
				if s.chunk.Marks != nil || s.spent+len(s.chunk.Sums)+len(some)*markLen > chunkLen {
					if err := s.flushChunk(); err != nil {
						return err
					}
				}
				s.chunk.Marks = marksMessage(some)
			}
		}
		s.chunk.Frames, s.chunk.Pairs = sums.Frames, sums.Pairs
	}
	s.chunk.Last, s.chunk.Request = true, request
	return stream.Send(s.chunk)
}

// clearHarvest ends the pending harvest after it is applied, by clearing its bank. If that fails,
// the harvest stays pending.
func (j *job) clearHarvest() error {
	gradients := j.frozen != nil
	if gradients {
		if err := j.plane.Clear(j.frozen); err != nil {
			return planeError(err)
		}
		j.frozen = nil
	}
	j.releaseChildren()
	j.pending = false
	j.mu.Lock()
	defer j.mu.Unlock()
	j.held.addDuration(time.Since(j.started))
	if gradients {
		j.age.addDuration(time.Since(j.oldest))
	}
	return nil
}

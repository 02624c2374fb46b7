// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// enough reports whether at least the job's harvest_frames frames were applied and are in no
// harvest yet.
func (j *job) enough() (bool, error) {
	c, err := j.plane.JobCounters(j.cfg.ID)
	if err != nil {
		return false, planeError(err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return c.Applied-j.taken >= j.spec.HarvestFrames, nil
}

// freeze begins a harvest: it freezes the current bank. If every applied frame is in a harvest
// already, this one is empty and the banks are not swapped.
func (j *job) freeze() error {
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
	}
	j.pending = true
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.first {
		j.interval.add(now.Sub(j.started))
	}
	j.started, j.first = now, false
	if j.frozen != nil {
		// Not all frames applied until now: some may be in the other bank.
		j.taken += j.frozen.Frames
	}
	j.number++
	return nil
}

// resume continues after the owner's last stream: last is the newest harvest that the owner has
// applied. If a harvest is pending, either the harvest or its acknowledgement was lost.
func (j *job) resume(last uint64) error {
	number := j.harvests()
	applied, lost := last == number, last+1 == number && j.pending
	if !applied && !lost {
		return status.Errorf(codes.FailedPrecondition, "job %d: the newest harvest here is %d, and the newest that its server has applied is %d: these do not match; create the job again", j.cfg.ID, number, last)
	}
	if applied && j.pending {
		if err := j.clear(); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.started, j.first = time.Now(), true // the time before is no harvest interval
	return nil
}

// send sends the pending harvest, which answers the requests up to the given number, with its marks or
// without.
func (j *job) send(stream harvestStream, request uint64, marks bool) error {
	chunk := &pb.HarvestChunk{Number: j.harvests()}
	if j.frozen != nil {
		for first, slots := 0, j.frozen.Slots; first < len(slots); first += chunkSums {
			sums := groups(slots[first:min(first+chunkSums, len(slots))])
			if sums == nil {
				continue
			}
			if chunk.Sums != nil {
				if err := stream.Send(chunk); err != nil {
					return err
				}
				chunk = &pb.HarvestChunk{Number: chunk.Number}
			}
			chunk.First, chunk.Sums = uint32(first), sums
		}
		if marks {
			for some := range slices.Chunk(j.frozen.Marks, chunkMarks) {
				if chunk.Marks != nil || len(chunk.Sums)+len(some)*markLen > chunkLen {
					if err := stream.Send(chunk); err != nil {
						return err
					}
					chunk = &pb.HarvestChunk{Number: chunk.Number}
				}
				chunk.Marks = marksMessage(some)
			}
		}
		chunk.Frames, chunk.Pairs = j.frozen.Frames, j.frozen.Pairs
	}
	chunk.Last, chunk.Request = true, request
	return stream.Send(chunk)
}

// clear ends the pending harvest after it is applied, by clearing its bank. If that fails, the
// harvest stays pending.
func (j *job) clear() error {
	if j.frozen != nil {
		if err := j.plane.Clear(j.frozen); err != nil {
			return planeError(err)
		}
		j.frozen = nil
	}
	j.pending = false
	j.mu.Lock()
	defer j.mu.Unlock()
	j.held.add(time.Since(j.started))
	return nil
}

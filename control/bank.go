package control

import (
	"time"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// enough reports whether as many frames as the job's harvest_frames were
// applied since the latest harvest.
func (j *job) enough() (bool, error) {
	c, err := j.plane.JobCounters(j.cfg.ID)
	if err != nil {
		return false, planeError(err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return c.Applied-j.applied >= j.spec.HarvestFrames, nil
}

// harvest freezes the current bank and sends it. If nothing was added since
// the last harvest, it sends an empty one and leaves the banks alone.
func (j *job) harvest(stream harvestStream) error {
	c, err := j.plane.JobCounters(j.cfg.ID)
	if err != nil {
		return planeError(err)
	}
	if j.begin(c.Applied) {
		if j.frozen, err = j.plane.Swap(j.cfg.ID); err != nil {
			return planeError(err)
		}
	}
	return j.send(stream)
}

// began notes the start of a stream: the time before it is no harvest interval.
func (j *job) began() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.started = time.Now()
	j.first = true
}

// begin notes the start of a harvest and reports whether there is anything to
// harvest.
func (j *job) begin(applied uint64) (fresh bool) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.first {
		j.interval.add(now.Sub(j.started))
	}
	j.started, j.first = now, false
	fresh = applied != j.applied
	j.applied = applied
	j.number++
	return fresh
}

// send sends the frozen bank, or an empty harvest if there is none.
func (j *job) send(stream harvestStream) error {
	chunk := &pb.HarvestChunk{Number: j.harvests()}
	if j.frozen != nil {
		for rank, sum := range j.frozen.Slots {
			if sum == 0 {
				continue
			}
			if len(chunk.Ranks) == chunkSums {
				if err := stream.Send(chunk); err != nil {
					return err
				}
				chunk = &pb.HarvestChunk{Number: chunk.Number}
			}
			if chunk.Ranks == nil {
				room := min(chunkSums, len(j.frozen.Slots)-rank)
				chunk.Ranks, chunk.Sums = make([]uint32, 0, room), make([]int64, 0, room)
			}
			chunk.Ranks = append(chunk.Ranks, uint32(rank))
			chunk.Sums = append(chunk.Sums, sum)
		}
		chunk.Frames, chunk.Pairs = j.frozen.Frames, j.frozen.Pairs
	}
	chunk.Last, chunk.Ticket = true, j.ticket
	return stream.Send(chunk)
}

// clear hands the acknowledged bank back.
func (j *job) clear() error {
	j.mu.Lock()
	j.held.add(time.Since(j.started))
	j.mu.Unlock()
	if j.frozen == nil {
		return nil
	}
	bank := j.frozen
	j.frozen = nil
	return j.plane.Clear(bank)
}

// SPDX-License-Identifier: Apache-2.0

package lossy

import (
	"math"

	"github.com/libra-ina/libra/codec"
)

// exchange adds up the gradients of the workers.
type exchange interface {
	// add stores the sum of gradients, one vector for each worker, in sum, as each worker has it after
	// the exchange. It may change gradients. It returns the bytes that a worker has sent, on average.
	add(sum []float32, gradients [][]float32) (bytes float64)
}

// ring is the paper's Algorithm 1: a vector is cut into as many blocks as there are workers, and a
// block goes around, each worker adding its own, until the last has the sum, which goes around
// again. All that is sent goes through a link.
type ring struct {
	link link
	// rests are what the link has cut from what each worker sent, and each adds to its next gradient:
	// error feedback. Nil: it is lost.
	rests [][]float32
}

// link is what a vector is sent through. It changes the block into what arrives, and returns the
// bytes sent.
type link interface {
	send(block []float32) (bytes int)
}

func newRing(l link, feedback bool, workers, values int) *ring {
	r := &ring{link: l}
	for range workers {
		if feedback {
			r.rests = append(r.rests, make([]float32, values))
		}
	}
	return r
}

// blockOf returns the place of a block of a vector, of multiples of codec.Group values.
func blockOf(block, blocks, values int) (from, to int) {
	size := (values + codec.Group*blocks - 1) / (codec.Group * blocks) * codec.Group
	return min(block*size, values), min((block+1)*size, values)
}

func (r *ring) add(sum []float32, gradients [][]float32) float64 {
	workers, bytes := len(gradients), 0
	for b := range workers {
		from, to := blockOf(b, workers, len(sum))
		block := sum[from:to]
		clear(block)
		for hop := range workers {
			worker := (b + hop) % workers
			for i, v := range gradients[worker][from:to] {
				block[i] += v
			}
			var rest []float32
			if r.rests != nil {
				rest = r.rests[worker][from:to]
				for i := range block {
					block[i] += rest[i]
					rest[i] = block[i]
				}
			}
			sent := r.link.send(block)
			for i := range rest {
				rest[i] -= block[i]
			}
			if hop < workers-1 {
				bytes += sent
			} else { // the sum goes to all others
				bytes += sent * (workers - 1)
			}
		}
	}
	return float64(bytes) / float64(workers)
}

// floats is a link that sends values as they are.
type floats struct{}

func (floats) send(block []float32) int { return 4 * len(block) }

// coded is a link that sends codes of package codec.
type coded struct {
	codec  codec.Codec
	buffer []byte
}

func newCoded(c codec.Config) (*coded, error) {
	made, err := codec.New(c)
	return &coded{codec: made}, err
}

func (c *coded) send(block []float32) int {
	c.buffer = c.codec.Append(c.buffer[:0], block)
	if err := c.codec.Decode(block, c.buffer); err != nil {
		panic("lossy: codes that were just made are malformed: " + err.Error())
	}
	return len(c.buffer)
}

// truncated is a link that leaves out the lowest bits of each value, as the paper's Figures 4 and
// 14.
type truncated struct{ bits int }

func (t truncated) send(block []float32) int {
	mask := ^uint32(0) << t.bits
	for i, v := range block {
		block[i] = math.Float32frombits(math.Float32bits(v) & mask)
	}
	return (len(block)*(32-t.bits) + 7) / 8
}

// scaled is a link that sends each value in 8 bits, as a multiple of a 127th of the block's largest
// magnitude, which goes with it.
type scaled struct{}

func (scaled) send(block []float32) int {
	var top float32
	for _, v := range block {
		top = max(top, float32(math.Abs(float64(v))))
	}
	if unit := top / 127; unit > 0 {
		for i, v := range block {
			block[i] = float32(math.RoundToEven(float64(v/unit))) * unit
		}
	}
	return len(block) + 4
}

// largest is an exchange of a share of each worker's values, those of the largest magnitudes, with
// their places. What is left is added to the worker's next gradient: S. Stich et al., "Sparsified
// SGD with Memory", NeurIPS 2018.
type largest struct {
	count int
	rests [][]float32
}

func newLargest(share float64, workers, values int) *largest {
	l := &largest{count: max(1, int(share*float64(values)))}
	for range workers {
		l.rests = append(l.rests, make([]float32, values))
	}
	return l
}

func (l *largest) add(sum []float32, gradients [][]float32) float64 {
	clear(sum)
	for worker, gradient := range gradients {
		rest := l.rests[worker]
		for i, v := range gradient {
			rest[i] += v
		}
		least, more := leastOfLargest(rest, l.count)
		equal := l.count - more // of those that are as large as the least, the first
		for i, v := range rest {
			switch magnitude := magnitudeOf(v); {
			case magnitude < least:
				continue
			case magnitude == least && equal == 0:
				continue
			case magnitude == least:
				equal--
			}
			sum[i] += v
			rest[i] = 0
		}
	}
	return float64((len(gradients) - 1) * l.count * (4 + 4)) // to each of the others
}

// magnitudeOf returns a number that grows with the magnitude of a value.
func magnitudeOf(v float32) uint32 { return math.Float32bits(v) &^ (1 << 31) }

// leastOfLargest returns the count-th largest magnitude of values, and how many are larger.
func leastOfLargest(values []float32, count int) (least uint32, larger int) {
	const half = 16
	for shift := half; shift >= 0; shift -= half { // the upper half of the bits, then the lower
		var counts [1 << half]int
		for _, v := range values {
			if m := magnitudeOf(v); shift == half || m>>half == least>>half {
				counts[m>>shift&(1<<half-1)]++
			}
		}
		digit := len(counts) - 1
		for larger+counts[digit] < count {
			larger += counts[digit]
			digit--
		}
		least |= uint32(digit) << shift
	}
	return least, larger
}

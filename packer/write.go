package packer

import (
	"fmt"

	"github.com/libra-ina/libra/wire"
)

// packHot sends the hot pairs of the batch that split has taken apart.
func (p *Packer) packHot(frames Frames, grads []float32, sent *Sent) error {
	stripes := (p.dense.n + wire.Lanes - 1) / wire.Lanes
	for j := range p.lanes {
		stripes = max(stripes, p.lanes[j].n)
	}
	for first := 0; first < stripes; first += p.stripes {
		n := min(p.stripes, stripes-first)
		payload, err := frames.Hot()
		if err != nil {
			return err
		}
		if len(payload) < wire.HotLen(p.stripes) {
			return fmt.Errorf("%w: %d bytes for %d stripes", ErrBuffer, len(payload), p.stripes)
		}
		payload = payload[:wire.HotLen(n)]
		var pairs int
		if p.layout == Dense {
			pairs = p.writeDense(payload, first, n, grads)
		} else {
			pairs = p.writeAligned(payload, first, n, grads)
		}
		if err := frames.SendHot(payload); err != nil {
			return err
		}
		sent.HotFrames++
		sent.HotStripes += n
		sent.HotPairs += pairs
	}
	return nil
}

// writeAligned writes stripes first to first+n-1 of the batch: the k-th pair of
// a lane goes to the k-th stripe. It goes lane by lane, so that each list is
// read in one run.
func (p *Packer) writeAligned(payload []byte, first, n int, grads []float32) (pairs int) {
	clear(payload[wire.HeaderLen:])
	var masks [wire.MaxStripes]uint32
	for j := range p.lanes {
		l := &p.lanes[j]
		if l.n <= first {
			continue
		}
		run := l.pairs[first:min(l.n, first+n)]
		pairs += len(run)
		if p.numbers.integers() {
			for k, q := range run {
				s := wire.StripeAt(payload, k)
				s.SetBits(j, p.numbers.integer(grads[q.grad]))
				s.SetSlot(j, uint16(q.slot))
				masks[k] |= 1 << j
			}
			continue
		}
		for k, q := range run {
			s := wire.StripeAt(payload, k)
			s.SetValue(j, grads[q.grad])
			s.SetSlot(j, uint16(q.slot))
			masks[k] |= 1 << j
		}
	}
	for k, mask := range masks[:n] {
		wire.StripeAt(payload, k).SetMask(mask)
	}
	return pairs
}

// writeDense writes stripes first to first+n-1 of the batch, every lane of them
// filled but for the end of the last.
func (p *Packer) writeDense(payload []byte, first, n int, grads []float32) (pairs int) {
	for k := range n {
		s := wire.StripeAt(payload, k)
		at := (first + k) * wire.Lanes
		run := p.dense.pairs[at:min(p.dense.n, at+wire.Lanes)]
		if len(run) < wire.Lanes {
			s.Clear()
		}
		s.SetMask(1<<len(run) - 1)
		pairs += len(run)
		if p.numbers.integers() {
			for j, q := range run {
				s.SetBits(j, p.numbers.integer(grads[q.grad]))
				s.SetSlot(j, uint16(q.slot))
			}
			continue
		}
		for j, q := range run {
			s.SetValue(j, grads[q.grad])
			s.SetSlot(j, uint16(q.slot))
		}
	}
	return pairs
}

// packCold sends the rows that are not in the hot set, in batch order.
func (p *Packer) packCold(frames Frames, keys []uint64, grads []float32, sent *Sent) error {
	for rows := p.cold[:p.nCold]; len(rows) > 0; {
		payload, err := frames.Cold()
		if err != nil {
			return err
		}
		n := min(len(rows), wire.ColdCap(len(payload), p.dim))
		if n == 0 {
			return fmt.Errorf("%w: %d bytes cannot hold a row of dimension %d", ErrBuffer, len(payload), p.dim)
		}
		payload = payload[:wire.ColdLen(n, p.dim)]
		body := wire.PutRows(payload, wire.TypeCold, n, p.dim)
		for k, i := range rows[:n] {
			body.SetKey(k, keys[i])
			body.SetRow(k, grads[int(i)*p.dim:])
		}
		if err := frames.SendCold(payload); err != nil {
			return err
		}
		rows = rows[n:]
		sent.ColdRows += n
		sent.ColdFrames++
	}
	return nil
}

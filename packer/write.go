package packer

import "github.com/libra-ina/libra/wire"

// hotStripes returns how many stripes the hot pairs take that split has listed.
func (p *Packer) hotStripes() int {
	stripes := (p.dense.n + wire.Lanes - 1) / wire.Lanes
	for j := range p.lanes {
		stripes = max(stripes, p.lanes[j].n)
	}
	return stripes
}

// fillHot writes the next hot frame.
func (p *Packer) fillHot(payload []byte) []byte {
	first := p.sent.HotStripes
	n := min(p.stripes, p.batch.stripes-first)
	payload = payload[:wire.HotLen(n)]
	if p.layout == Dense {
		p.sent.HotPairs += p.writeDense(payload, first, n, p.grads)
	} else {
		p.sent.HotPairs += p.writeAligned(payload, first, n, p.grads)
	}
	p.sent.HotStripes += n
	p.sent.HotFrames++
	return payload
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

// fillCold writes the next up to n rows that are not in the hot set, in batch order.
func (p *Packer) fillCold(payload []byte, n int) []byte {
	keys, grads, dim := p.keys, p.grads, p.dim
	rows := p.cold[p.sent.ColdRows:p.rows]
	rows = rows[:min(n, len(rows))]
	payload = payload[:wire.ColdLen(len(rows), dim)]
	body := wire.PutRows(payload, wire.TypeCold, len(rows), dim)
	for k, i := range rows {
		body.SetKey(k, keys[i])
		body.SetRow(k, grads[int(i)*dim:])
	}
	p.sent.ColdRows += len(rows)
	p.sent.ColdFrames++
	return payload
}

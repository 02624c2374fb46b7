// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net"

	"github.com/libra-ina/libra/afxdp"
	"github.com/libra-ina/libra/wire"
)

// rxQueue holds the frames that an endpoint has received from one socket.
type rxQueue struct {
	descs []afxdp.Desc // descriptors of the last Receive
	kept  []bool       // by desc: sent as an answer
	owed  int          // frames that answers removed from the fill ring
}

func (l *afxdpLink) Receive(pkts []Packet) (n int, err error) {
	if l.follow.back.Load() {
		if err := l.reopenSockets(); err != nil {
			return 0, err
		}
	}
	l.first = (l.first + 1) % len(l.socks) // so that one queue cannot starve the others
	for k := range l.socks {
		i := (l.first + k) % len(l.socks)
		s, q := l.socks[i], &l.rx[i]
		if err := l.releaseReceived(s, q); err != nil { // net.ErrClosed after Close
			return 0, err
		}
		room := min(len(pkts)-n, cap(q.descs))
		got, err := s.Receive(q.descs[:room])
		if err := l.absorbError(err); err != nil {
			return 0, err
		}
		q.descs = q.descs[:got]
		l.showFrames(Inbound, q.descs)
		for j, d := range q.descs {
			q.kept[j] = false
			if p, ok := l.parseFrame(d); ok {
				pkts[n] = Packet{Packet: p, Handle: uint32(i)<<16 | uint32(j)}
				if draws(l.draw, p.Payload) {
					pkts[n].Arrived, _ = l.umem.RxStamp(d)
				}
				n++
			}
		}
	}
	if n > 0 {
		l.stats.Received += uint64(n)
		l.follow.heard.Store(l.stats.Received)
	}
	return n, nil
}

// parseFrame decodes a received frame, and counts a frame that is not for this link.
func (l *afxdpLink) parseFrame(d afxdp.Desc) (wire.Packet, bool) {
	p, err := wire.ParseFrame(l.umem.Packet(d), l.local.Port)
	switch {
	case errors.Is(err, wire.ErrTruncated):
		l.stats.Truncated++
	case errors.Is(err, wire.ErrChecksum):
		l.stats.BadChecksum++
	case err != nil || p.Dst.IP != l.local.IP && p.Dst.IP != l.joined:
		l.stats.Foreign++
	default:
		return p, true
	}
	return p, false
}

// releaseReceived returns the frames of the last Receive to the fill ring, and replaces those that
// answers used.
func (l *afxdpLink) releaseReceived(s *afxdp.Socket, q *rxQueue) error {
	back := q.descs[:0]
	for k, d := range q.descs {
		if !q.kept[k] {
			back = append(back, d)
		}
	}
	q.descs = q.descs[:0]
	if err := l.absorbError(s.Release(back)); err != nil {
		return err
	}
	if q.owed == 0 {
		return nil
	}
	l.reapSent()
	n, err := s.Refill(q.owed)
	q.owed -= n
	return l.absorbError(err)
}

func (l *afxdpLink) Reply(pkts []Packet) error {
	if l.closed {
		return net.ErrClosed
	}
	l.descs, l.index = l.descs[:0], l.index[:0]
	for i := range pkts {
		p := &pkts[i]
		if p.Reply == 0 {
			continue
		}
		d := l.rx[p.Handle>>16].descs[p.Handle&0xffff]
		d.Len = uint32(len(wire.Reply(l.umem.Packet(d), p.Reply)))
		l.descs = append(l.descs, d)
		l.index = append(l.index, i)
	}
	n, err := l.tx.Send(l.descs)
	if err != nil {
		return err
	}
	for k, d := range l.descs[:n] {
		slot := pkts[l.index[k]].Handle
		q := &l.rx[slot>>16]
		q.kept[slot&0xffff] = true
		q.owed++
		l.flying[d.Frame], l.dropped[d.Frame] = true, true
	}
	l.showFrames(Outbound, l.descs[:n])
	l.stats.Sent += uint64(n)
	l.stats.NoRoom += uint64(len(l.descs) - n)
	return l.kickSend()
}

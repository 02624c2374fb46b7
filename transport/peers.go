// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"net/netip"
	"slices"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/wire"
)

// peers holds the addresses of each job's senders, learnt from accepted frames of one epoch. It
// holds at most as many senders as can take part in rounds.
type peers [aggregator.MaxJobs]jobPeers

type jobPeers struct {
	epoch   uint16
	senders []peer // in order of their first frame
}

type peer struct {
	sender uint16
	at     wire.Endpoint
	path   link.Path // nil until the first broadcast
}

// learnSource records the source of a frame that the reply acknowledges.
func (p *peers) learnSource(request *link.Packet, reply []byte) {
	h, err := wire.ParseHeader(reply)
	if err != nil || h.Type != wire.TypeAck {
		return
	}
	if h.Flags&wire.FlagAll != 0 {
		h, _ = wire.ParseHeader(request.Payload) // valid, since it was answered
	}
	p.addSource(h, request.Src)
}

// learnQuiet records the source of a frame without an answer, if it is a quiet one of an admitted
// sender.
func (p *peers) learnQuiet(request *link.Packet, model *aggregator.Model) {
	h, err := wire.ParseHeader(request.Payload)
	if err != nil || h.Type != wire.TypeHot || h.Flags&wire.FlagQuiet == 0 || h.Job >= aggregator.MaxJobs {
		return
	}
	j := &p[h.Job]
	if i := j.findSender(h.Sender); j.epoch == h.Epoch && i >= 0 && j.senders[i].at == request.Src {
		return
	}
	if model.IsSender(netip.AddrPortFrom(request.Src.IP, request.Src.Port), h) {
		p.addSource(h, request.Src)
	}
}

// addSource records the source of a frame with a header.
func (p *peers) addSource(h wire.Header, from wire.Endpoint) {
	j := &p[h.Job]
	if j.epoch != h.Epoch {
		j.epoch, j.senders = h.Epoch, j.senders[:0]
	}
	i := j.findSender(h.Sender)
	switch {
	case i < 0 && len(j.senders) < aggregator.MaxWorkers:
		j.senders = append(j.senders, peer{sender: h.Sender, at: from})
	case i >= 0 && j.senders[i].at != from:
		j.senders[i] = peer{sender: h.Sender, at: from}
	}
}

// findSender returns the index of a sender, or -1.
func (j *jobPeers) findSender(sender uint16) int {
	return slices.IndexFunc(j.senders, func(known peer) bool { return known.sender == sender })
}

// sendToAll sends a payload to all known senders of its job. A copy without a buffer
// is lost: its sender asks again.
func (a *AggregatorServer) sendToAll(payload []byte) error {
	out := a.link
	h, _ := wire.ParseHeader(payload)
	b, ok := out.Alloc()
	if !ok {
		return nil
	}
	defer out.Free(b)
	n := copy(out.Payload(b), payload)
	a.copies = a.copies[:0]
	senders := a.peers[h.Job].senders
	for i := range senders {
		to := &senders[i]
		if to.path == nil {
			var err error
			if to.path, err = out.Path(context.Background(), to.at); err != nil {
				continue // not reachable
			}
		}
		a.copies = append(a.copies, link.Frame{Buf: b, Len: n, To: to.path})
	}
	_, err := out.Send(a.copies)
	return err
}

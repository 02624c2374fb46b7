// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
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
	sender := h.Sender
	if h.Flags&wire.FlagAll != 0 {
		asked, _ := wire.ParseHeader(request.Payload) // valid, since it was answered
		sender = asked.Sender
	}
	j := &p[h.Job]
	if j.epoch != h.Epoch {
		j.epoch, j.senders = h.Epoch, j.senders[:0]
	}
	i := slices.IndexFunc(j.senders, func(known peer) bool { return known.sender == sender })
	switch {
	case i < 0 && len(j.senders) < aggregator.MaxWorkers:
		j.senders = append(j.senders, peer{sender: sender, at: request.Src})
	case i >= 0 && j.senders[i].at != request.Src:
		j.senders[i] = peer{sender: sender, at: request.Src}
	}
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

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
)

// AggregatorServer answers the frames that reach a link with an
// [aggregator.Model]: the data plane of the UDP backend. Jobs, senders and
// banks are managed through the model, which may be used at the same time.
//
// What goes to all senders of a job, it sends to each sender by itself.
type AggregatorServer struct {
	loop
	model *aggregator.Model
	reply []byte
	peers peers

	copies []link.Frame
}

// NewAggregatorServer starts serving. The link may be any; the server owns it from then on and closes
// it. The model stays the caller's.
func NewAggregatorServer(on link.Link, model *aggregator.Model) (*AggregatorServer, error) {
	if on == nil || model == nil {
		return nil, fmt.Errorf("%w: aggregator server needs a link and a model", ErrConfig)
	}
	a := &AggregatorServer{model: model, reply: make([]byte, aggregator.MaxReplyPayload)}
	a.init(on, 0)
	a.start(func() error { return a.serve(a.handle, nil) }, func(error) {})
	return a, nil
}

func (a *AggregatorServer) handle(pkts []link.Packet) error {
	for i := range pkts {
		p := &pkts[i]
		v, n := a.model.ProcessPayload(netip.AddrPortFrom(p.Src.IP, p.Src.Port), p.Payload, a.reply)
		if n == 0 {
			continue
		}
		a.peers.learn(p, a.reply[:n])
		if v.Action == aggregator.Broadcast {
			if err := a.sendToAll(a.reply[:n]); err != nil {
				return err
			}
			continue
		}
		p.Reply = copy(p.Payload[:n], a.reply)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
)

// AggregatorServer answers frames from a link with an [aggregator.Model]. It is the
// data plane of the UDP backend. Jobs, senders and banks are managed through the
// model, also while the server runs. A broadcast is sent to each sender of the job
// separately.
type AggregatorServer struct {
	loop
	model *aggregator.Model
	reply []byte
	peers peers

	copies []link.Frame
}

// NewAggregatorServer starts serving. The server owns the link and closes it; the
// caller keeps the model.
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

// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"net/netip"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/transport/endpoint"
)

// AggregatorServer answers frames from a link with an [aggregator.Model]. It is the
// data plane of the UDP backend. Jobs, senders and banks are managed through the
// model, also while the server runs. A broadcast is sent to each sender of the job
// separately.
type AggregatorServer struct {
	base
	model *aggregator.Model
	reply []byte
	peers peers

	copies []link.Frame
}

// AggregatorConfig describes an [AggregatorServer].
type AggregatorConfig struct {
	// Link carries the frames. The server owns and closes it once NewAggregatorServer succeeds.
	Link link.Link
	// Model answers them. The caller keeps it.
	Model *aggregator.Model
	// Gate is for simulations; see [endpoint.Config].
	Gate func()
}

// NewAggregatorServer starts serving.
func NewAggregatorServer(cfg AggregatorConfig) (*AggregatorServer, error) {
	if cfg.Link == nil || cfg.Model == nil {
		return nil, fmt.Errorf("%w: aggregator server needs a link and a model", ErrConfig)
	}
	a := &AggregatorServer{model: cfg.Model, reply: make([]byte, aggregator.MaxReplyPayload)}
	a.initLoop(endpoint.Config{Link: cfg.Link, Gate: cfg.Gate})
	a.loop.Start(func() error { return a.loop.Serve(a.handleBatch, nil) }, func(error) {})
	return a, nil
}

func (a *AggregatorServer) handleBatch(pkts []link.Packet) error {
	for i := range pkts {
		p := &pkts[i]
		v, n := a.model.ProcessPayload(netip.AddrPortFrom(p.Src.IP, p.Src.Port), p.Payload, a.reply)
		if n == 0 {
			a.peers.learnQuiet(p, a.model)
			continue
		}
		a.peers.learnSource(p, a.reply[:n])
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

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"time"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/transport"
)

// modelPlane is the Go aggregator behind a UDP socket.
type modelPlane struct {
	*aggregator.Model
	server *transport.AggregatorServer
}

func openModelPlane(env Env) (plane, error) {
	c := env.Config
	l, err := openBackend(env, cluster.Host{Address: c.Switch.Address})
	if err != nil {
		return plane{}, err
	}
	start := time.Now()
	model, err := aggregator.NewModel(aggregator.Config{Address: c.Switch.Address, Port: c.Port,
		Sample: c.Telemetry.OneIn(), Clock: func() time.Duration { return time.Since(start) }})
	if err != nil {
		return plane{}, errors.Join(err, l.Close())
	}
	server, err := transport.NewAggregatorServer(transport.AggregatorConfig{Link: l, Model: model, Gate: env.Machine.Gate})
	if err != nil {
		err = errors.Join(err, l.Close())
		return plane{}, errors.Join(err, model.Close())
	}
	failed := make(chan error, 1)
	go func() {
		<-server.Done()
		failed <- server.Err()
	}()
	return plane{Plane: &modelPlane{model, server}, failed: failed, what: "go model over udp"}, nil
}

// Close stops the socket before the model, which its goroutine uses.
func (p *modelPlane) Close() error {
	err := p.server.Close()
	return errors.Join(err, p.Model.Close())
}

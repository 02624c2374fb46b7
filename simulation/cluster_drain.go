// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// drainLimit is how long an operator waits for a drain. Other trouble may make it last longer.
const drainLimit = 30 * time.Second

// planDrains plans that an operator moves a training up to four times, in one life of four, or in
// all if that is the only kind of trouble: to any aggregator, or to a certain one.
func (c *clusterLife) planDrains() {
	rng := c.options.named("drains")
	some := rng.IntN(4) == 0 || c.options.Kinds == Drain
	if c.options.Kinds&Drain == 0 || !some {
		return
	}
	c.delayServer()
	for n := range 1 + rng.IntN(4) {
		moment := 1 + rng.IntN(1+rng.IntN(900))
		var to *uint32
		if at := uint32(rng.IntN(1 + len(c.cfg.Standbys))); len(c.cfg.Standbys) > 0 && rng.IntN(3) == 0 {
			to = &at
		}
		begin := func() { c.drainJob(n, to) }
		if rng.IntN(2) == 0 {
			c.planned[byMessages] = append(c.planned[byMessages], planned{moment, begin})
		} else {
			c.planned[byFrames] = append(c.planned[byFrames], planned{moment, begin})
		}
	}
}

// drainJob runs a program on the server's host that moves the training.
func (c *clusterLife) drainJob(n int, to *uint32) {
	if c.Healed() {
		return
	}
	c.noteFence()
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	p := c.newProcess("operator", fmt.Sprintf("operator %d", n+1), c.hostOf(c.addressOf(theServer)), cancel)
	c.outside = append(c.outside, p)
	c.Tell("%s drains the aggregator\n", p.Name())
	go func() {
		answer, err := p.drainSwitch(ctx, to)
		cancel()
		c.Mu.Lock()
		if err == nil {
			c.result.Drains++
			// Where the job goes on may be lost meanwhile: then the answer says where else.
			if to != nil && c.happened&^Drain == 0 && (answer.To == nil || *answer.To != *to) {
				p.err = fmt.Errorf("%s moves the training to aggregator %d, and hears %v", p.Name(), *to, answer)
			}
		}
		p.ended = true
		c.Mu.Unlock()
		c.Kick()
	}()
}

func (p *process) drainSwitch(ctx context.Context, to *uint32) (*pb.DrainResponse, error) {
	cfg := &p.c.cfg
	options := append(p.clientOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("passthrough:///"+cfg.Server.Control.String(), options...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return pb.NewParameterServerClient(conn).Drain(ctx, &pb.DrainRequest{Job: uint32(cfg.Job.ID), To: to})
}

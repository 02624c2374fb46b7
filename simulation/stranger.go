// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/libra-ina/libra/cluster"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/simulation/world"
)

// planStrangers plans programs outside the cluster, on one of its hosts or on another, which know
// the numbers of the job and its workers, and call its services. Their calls must fail.
func (c *clusterLife) planStrangers(hosts []*world.Host) {
	s, rng := c, c.options.named("strangers")
	here := slices.Concat(hosts, []*world.Host{s.NewHost("stranger", netip.MustParseAddrPort("10.0.0.99:7000"))})
	for n := range rng.IntN(4) {
		moment, at, what := rng.IntN(1+rng.IntN(600)), here[rng.IntN(len(here))], rng.IntN(len(demands))
		sender := c.cfg.Workers[rng.IntN(len(c.cfg.Workers))].ID
		if s.plan.kinds&Hostile == 0 {
			continue
		}
		c.planned[byMessages] = append(c.planned[byMessages], planned{moment, func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			p := c.newProcess("stranger", fmt.Sprintf("stranger %d on the host of %s", n+1, at.Name()), at, cancel)
			c.outside = append(c.outside, p)
			c.result.Strangers++
			go func() {
				err := p.makeDemand(ctx, demands[what], sender)
				cancel()
				s.Mu.Lock()
				p.ended, p.err = true, err
				s.Mu.Unlock()
				s.Kick()
			}()
		}})
	}
}

// makeDemand calls a service, and returns an error if the call succeeds.
func (p *process) makeDemand(ctx context.Context, d demand, sender uint16) error {
	cfg := &p.c.cfg
	at := cfg.Server.Control
	if d.ofSwitch {
		at = cfg.Switch.Control
	}
	options := append(p.clientOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("passthrough:///"+at.String(), options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := d.call(ctx, conn, cfg, uint32(sender)); err == nil {
		return fmt.Errorf("%s obeys %s, which demands that it %s worker %d", at, p.Name(), d.what, sender)
	}
	return nil
}

// demand is a stranger's call of a service.
type demand struct {
	what     string
	ofSwitch bool
	call     func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, sender uint32) error
}

// guessed is a wrong key or token.
var guessed = make([]byte, 16)

var demands = []demand{
	{"take as arrived at a barrier", false, func(
		ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, sender uint32,
	) error {
		_, err := pb.NewParameterServerClient(conn).Barrier(ctx, &pb.BarrierRequest{Job: uint32(c.Job.ID), Sender: sender})
		return err
	}},
	{"take a report of", false, func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, sender uint32) error {
		_, err := pb.NewParameterServerClient(conn).Report(ctx, &pb.ReportRequest{
			Job: uint32(c.Job.ID), Sender: sender, Token: guessed, Steps: 1 << 20,
		})
		return err
	}},
	{"take as finished", false, func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, sender uint32) error {
		_, err := pb.NewParameterServerClient(conn).Done(ctx, &pb.DoneRequest{
			Job: uint32(c.Job.ID), Sender: sender, Token: guessed,
		})
		return err
	}},
	{"cut to 16 bits the number of", false, func(
		ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, sender uint32,
	) error {
		_, err := pb.NewParameterServerClient(conn).Done(ctx, &pb.DoneRequest{Job: uint32(c.Job.ID), Sender: sender + 1<<16})
		return err
	}},
	{"withdraw", false, func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, sender uint32) error {
		_, err := pb.NewParameterServerClient(conn).Leave(ctx, &pb.LeaveRequest{
			Job: uint32(c.Job.ID), Sender: sender, Token: guessed,
		})
		return err
	}},
	{"withdraw", true, func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, sender uint32) error {
		_, err := pb.NewAggregatorClient(conn).Leave(ctx, &pb.LeaveRequest{
			Job: uint32(c.Job.ID), Sender: sender, Token: guessed,
		})
		return err
	}},
	{"remove the job of", true, func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, _ uint32) error {
		_, err := pb.NewAggregatorClient(conn).RemoveJob(ctx, &pb.RemoveJobRequest{Job: uint32(c.Job.ID), Key: guessed})
		return err
	}},
	{"have it hold the job of", true, func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, _ uint32) error {
		stream, err := pb.NewAggregatorClient(conn).Hold(ctx, &pb.HoldRequest{Job: uint32(c.Job.ID), Key: guessed})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}},
	{"hand it the sums of", true, func(ctx context.Context, conn *grpc.ClientConn, c *cluster.Config, _ uint32) error {
		stream, err := pb.NewAggregatorClient(conn).Harvest(ctx)
		if err == nil {
			begin := &pb.HarvestBegin{Job: uint32(c.Job.ID), Key: guessed}
			err = stream.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Begin{Begin: begin}})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}},
}

// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	planner "github.com/libra-ina/libra/cluster/plan"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
)

// planChanges plans that an operator changes the neighbour's plan up to four times, at any moments
// of its life: to one without one of the switches, to one with all, or by a drain. Some are
// refused, for want of room or of numbers. Where processes are killed, one may be soon after a
// change has begun.
func (n *neighbour) planChanges() error {
	rng, kills := n.c.options.named("neighbour's plans"), n.c.options.named("neighbour's kills during changes")
	if n.cfg.Job.Plan == "" || rng.IntN(4) == 0 && !n.c.options.changes {
		return nil
	}
	hot, err := packer.LoadHotSet(n.cfg.Job.HotSet)
	if err != nil {
		return err
	}
	n.planKillAtAdoption()
	for number := range 1 + rng.IntN(4) {
		moment, drains := 1+rng.IntN(1+rng.IntN(900)), rng.IntN(3) == 0
		after, which, silence := 1+kills.IntN(40), kills.IntN(len(n.names)), kills.IntN(2) == 0
		if kills.IntN(2) == 0 && n.c.plan.kinds&Crash != 0 {
			n.killAt(moment+after, which, silence)
		}
		o := planner.Defaults()
		o.Objective, o.Pushes = planner.Room, planner.AutoPushes
		if at := rng.IntN(1 + len(n.cfg.Switches)); at < len(n.cfg.Switches) {
			o.Without = n.cfg.Switches[at].Name
		} else {
			drains = false
		}
		r, err := planner.Make(n.withoutParent(o.Without), hot, o)
		if err != nil {
			return err
		}
		report, err := json.Marshal(r)
		if err != nil {
			return err
		}
		change := func() {
			if drains {
				n.changePlan(number, "drains "+o.Without, func(ctx context.Context, s pb.ParameterServerClient) error {
					_, err := s.Drain(ctx, &pb.DrainRequest{Job: theirJob, Switch: o.Without})
					return err
				})
				return
			}
			n.changePlan(number, "changes the plan", func(ctx context.Context, s pb.ParameterServerClient) error {
				_, err := s.ChangePlan(ctx, &pb.ChangePlanRequest{Job: theirJob, Report: report})
				return err
			})
		}
		if n.c.options.changes {
			n.whenItTrains = append(n.whenItTrains, change)
			continue
		}
		n.c.planned[byMessages] = append(n.c.planned[byMessages], planned{moment, change})
	}
	return nil
}

// planKillAtAdoption decides, where processes are killed, which one is killed just after the worker
// has adopted a plan: the shares that it has left are then to be harvested once more, and closed.
func (n *neighbour) planKillAtAdoption() {
	rng := n.c.options.named("neighbour's kill at an adoption")
	n.dies = (rng.IntN(2) == 0 || n.c.options.changes) && n.c.plan.kinds&Crash != 0
	n.victim, n.delay = rng.IntN(len(n.names)), time.Duration(rng.IntN(4000))*time.Microsecond
}

// notesAdoptions notes when the neighbour's worker has been told that the server has its adoption
// of a plan.
func (p *process) notesAdoptions() grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, o ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, req, reply, conn, o...)
		n, adopts := p.c.neighbour, method == pb.ParameterServer_Adopt_FullMethodName
		if adopts && err == nil && p.role == theirWorker {
			p.c.Mu.Lock()
			n.adopted = true
			p.c.Mu.Unlock()
			p.c.Kick()
		}
		return err
	})
}

// killAtAdoption kills the process that was chosen, once. The operator still waits, unless all
// shares are closed by then.
func (n *neighbour) killAtAdoption() {
	if !n.adopted || !n.dies {
		return
	}
	n.dies = false
	n.c.After(n.delay, func() { n.killOne(n.victim, false, &n.c.result.Unclosed) })
}

// changePlan runs a program on the host of the neighbour's server that changes its plan.
func (n *neighbour) changePlan(number int, what string, call func(context.Context, pb.ParameterServerClient) error) {
	c := n.c
	if c.Healed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	const role = "neighbour's operator"
	p := c.newProcess(role, fmt.Sprintf("%s %d", role, number+1), c.hostOf(n.addressOf(0)), cancel)
	c.outside = append(c.outside, p)
	c.Tell("%s %s\n", p.Name(), what)
	n.changes++
	go func() {
		options := append(p.clientOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		conn, err := grpc.NewClient("passthrough:///"+n.cfg.Server.Control.String(), options...)
		if err == nil {
			err = call(ctx, pb.NewParameterServerClient(conn))
			conn.Close()
		}
		cancel()
		c.Mu.Lock()
		if err == nil {
			c.result.Changes++
		}
		p.ended = true
		n.changes--
		c.Mu.Unlock()
		c.Kick()
	}()
}

// adoptsEarly puts the life's fault into the calls of a worker: as soon as it is told a plan, it
// calls Adopt, though it still pushes to the shares of the plan before.
func (p *process) adoptsEarly() grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
		method string, open grpc.Streamer, o ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		s, err := open(ctx, desc, conn, method, o...)
		if err == nil && method == pb.ParameterServer_Join_FullMethodName && p.c.options.fault == closesEarly {
			s = &hastyStream{ClientStream: s, ctx: ctx, conn: conn}
		}
		return s, err
	})
}

// hastyPause is how long such a worker goes on with the plan before: more than the server takes to
// close shares.
const hastyPause = 50 * time.Millisecond

// hastyStream is the stream of an admission of a worker that adopts plans early.
type hastyStream struct {
	grpc.ClientStream
	ctx  context.Context
	conn *grpc.ClientConn
	req  *pb.JoinRequest
	own  []byte // token
}

// SendMsg sends a message.
func (s *hastyStream) SendMsg(m any) error {
	s.req, _ = m.(*pb.JoinRequest)
	return s.ClientStream.SendMsg(m)
}

// RecvMsg receives a message.
func (s *hastyStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if told, ok := m.(*pb.Membership); ok && err == nil {
		if len(told.Token) > 0 {
			s.own = told.Token
		}
		if told.Plan != nil && s.req != nil {
			req := &pb.AdoptRequest{Job: s.req.Job, Sender: s.req.Sender, Token: s.own, Version: told.Plan.Version}
			_ = s.conn.Invoke(s.ctx, pb.ParameterServer_Adopt_FullMethodName, req, &pb.AdoptResponse{})
			if told.Plan.Version > 1 {
				time.Sleep(hastyPause)
			}
		}
	}
	return err
}

// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/cluster/node"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/simulation/world"
)

// patience of other programs with the product's services.
const guestLimit = 30 * time.Second

// runGuest is a worker with its own program, in step with the others: it takes part in fewer steps
// than they do, pushes nothing, and finishes. The others continue without it.
func (p *process) runGuest(ctx context.Context, env node.Env) error {
	c := env.Config
	hot, err := packer.LoadHotSet(c.Job.HotSet)
	if err != nil {
		return err
	}
	fingerprint := hot.Fingerprint()
	conn, err := access.Dial(ctx, access.ServerOf(c.Job.ID), c.Server.Control, access.Security{}, guestLimit, env.Log,
		p.clientOptions()...)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := pb.NewParameterServerClient(conn)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req := &pb.JoinRequest{
		Job: uint32(c.Job.ID), Sender: uint32(p.c.guest), Ip: p.Host().Endpoint().IP.AsSlice(), Port: uint32(c.Port),
		HotSet: fingerprint[:], Agree: c.Agreement(), Attempt: []byte(p.Name()), // which says how often it was started
	}
	member, err := control.WhileTaken(ctx, guestLimit, env.Log, func(ctx context.Context) (*pb.Membership, error) {
		return control.Stay(ctx,
			func(ctx context.Context, newest *pb.Membership) (grpc.ServerStreamingClient[pb.Membership], error) {
				again := proto.CloneOf(req)
				again.Token = newest.GetToken()
				return client.Join(ctx, again)
			},
			func(newest *pb.Membership) time.Duration { return time.Duration(newest.GraceMs) * time.Millisecond }, nil,
			func(err error) { cancel(access.CallError("parameter server", "withdrew this worker", err)) })
	})
	if err != nil {
		return access.CallError("parameter server", "join", err)
	}
	env.Ready()
	call := func(name string, f func(context.Context) error) error {
		err := access.CallError("parameter server", name, control.Repeat(ctx, f))
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return err
	}
	for step := member.FirstStep; step < p.c.guestSteps; step++ {
		if err := call("barrier", func(ctx context.Context) error {
			_, err := client.Barrier(ctx, &pb.BarrierRequest{Job: req.Job, Sender: req.Sender, Token: member.Token, Step: step})
			return err
		}); err != nil {
			return err
		}
	}
	p.Turn("rests", world.Never, time.Now().Add(p.c.guestRest))
	if err := call("done", func(ctx context.Context) error {
		_, err := client.Done(ctx, &pb.DoneRequest{Job: req.Job, Sender: req.Sender, Token: member.Token})
		return err
	}); err != nil {
		return err
	}
	leaving, end := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer end()
	cancel(nil)
	_, _ = client.Leave(leaving, &pb.LeaveRequest{Job: req.Job, Sender: req.Sender, Token: member.Token})
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/internal/workload"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// membership is a worker's admission at the aggregator and at the parameter
// server. It lasts until leave, or until one of the two ends it or cannot be
// reached for its grace period.
type membership struct {
	job, id     uint32
	epoch       uint16 // of hot frames
	serverEpoch uint16 // of cold frames
	stripes     int
	layout      packer.Layout

	mode       aggregator.Mode
	arithmetic aggregator.Arithmetic
	exp        int
	workers    int    // in rounds
	firstStep  uint64 // that the worker trains

	server pb.ParameterServerClient
	token  []byte         // of the server
	leaves []func() error // at the services joined, the newest last
	conns  []*grpc.ClientConn
	stop   context.CancelFunc
}

// leaveLimit is how long a worker waits at its end for an answer.
const leaveLimit = 2 * time.Second

// join admits a worker. If its admission ends before it leaves, cancel is called
// with the reason.
func join(ctx context.Context, cancel context.CancelCauseFunc, env Env, self cluster.Worker, hot *packer.HotSet) (_ *membership, err error) {
	c := env.Config
	security, err := control.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, err
	}
	req, err := joinRequest(c, self, hot)
	if err != nil {
		return nil, err
	}
	streams, end := context.WithCancel(ctx)
	m := &membership{job: req.Job, id: req.Sender, stop: end}
	defer func() {
		if err != nil {
			m.leave()
		}
	}()
	dial := func(peer control.Peer, addr netip.AddrPort) (*grpc.ClientConn, error) {
		conn, err := control.Dial(ctx, peer, addr, security, startLimit, env.Log, env.Machine.Client...)
		if err == nil {
			m.conns = append(m.conns, conn)
		}
		return conn, err
	}

	// The server comes first: it creates the job at the aggregator. Both are reached
	// before either is joined: a worker that joins the server and then cannot go on
	// is one that the job has lost.
	toServer, err := dial(control.ServerOf(c.Job.ID), c.Server.Control)
	if err != nil {
		return nil, err
	}
	toSwitch, err := dial(control.TheAggregator(), c.Switch.Control)
	if err != nil {
		return nil, err
	}
	m.server = pb.NewParameterServerClient(toServer)
	joined, err := joinAt(streams, env, "parameter server", req, m.server.Join, m.server.Leave, m, cancel)
	if err != nil {
		return nil, err
	}
	m.token = joined.Token
	switchClient := pb.NewAggregatorClient(toSwitch)
	admitted, err := joinAt(streams, env, "aggregator", req, switchClient.Join, switchClient.Leave, m, cancel)
	if err != nil {
		return nil, err
	}
	return m, m.take(joined, admitted)
}

// take reads what the two services have answered.
func (m *membership) take(joined *pb.Membership, admitted *pb.Admission) error {
	if joined.Instance != admitted.Instance {
		return fmt.Errorf("the parameter server serves instance %d of job %d, the aggregator instance %d: restart the server", joined.Instance, m.job, admitted.Instance)
	}
	if admitted.Window < wire.DefaultWindow {
		return fmt.Errorf("the aggregator recognises duplicates within %d frames, this worker needs %d", admitted.Window, wire.DefaultWindow)
	}
	var known [2]bool
	m.mode, known[0] = control.ModeOf(admitted.Mode)
	m.arithmetic, known[1] = control.ArithmeticOf(admitted.Arithmetic)
	if known != [2]bool{true, true} {
		return fmt.Errorf("the aggregator runs job %d in mode %v with arithmetic %v, which this worker does not know: use the same version of Libra on all hosts", m.job, admitted.Mode, admitted.Arithmetic)
	}
	m.firstStep = joined.FirstStep
	m.exp, m.workers = int(admitted.Exponent), int(admitted.Workers)
	m.epoch, m.serverEpoch = uint16(admitted.Epoch), uint16(joined.Epoch)
	m.stripes = int(admitted.Stripes)
	if admitted.Dense {
		m.layout = packer.Dense
	}
	return nil
}

// admission is the first message of either service's join stream.
type admission interface {
	GetToken() []byte
	GetGraceMs() uint32
}

// joinAt joins one service and stays joined. A former self of this worker that
// was killed may still be in the job for a moment.
func joinAt[M any, P interface {
	*M
	admission
}](ctx context.Context, env Env, role string, req *pb.JoinRequest,
	join func(context.Context, *pb.JoinRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[M], error),
	leave func(context.Context, *pb.LeaveRequest, ...grpc.CallOption) (*pb.LeaveResponse, error),
	m *membership, cancel context.CancelCauseFunc,
) (*M, error) {
	first, err := control.WhileTaken(ctx, startLimit, env.Log, func(ctx context.Context) (*M, error) {
		return control.Stay(ctx,
			func(ctx context.Context, newest *M) (grpc.ServerStreamingClient[M], error) {
				again := proto.CloneOf(req)
				if newest != nil {
					again.Token = P(newest).GetToken()
				}
				return join(ctx, again)
			},
			func(newest *M) time.Duration { return time.Duration(P(newest).GetGraceMs()) * time.Millisecond },
			func(err error) { cancel(control.CallError(role, "withdrew this worker", err)) })
	})
	if err != nil {
		return nil, control.CallError(role, "join", err)
	}
	m.leaves = append(m.leaves, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
		defer cancel()
		_, err := leave(ctx, &pb.LeaveRequest{Job: req.Job, Sender: req.Sender, Token: P(first).GetToken()})
		return err
	})
	return first, nil
}

// barrier waits for the others at the end of a step. After a broken connection
// it asks again.
func (m *membership) barrier(ctx context.Context, step uint64) error {
	return m.call(ctx, "barrier", func(ctx context.Context) error {
		_, err := m.server.Barrier(ctx, &pb.BarrierRequest{Job: m.job, Sender: m.id, Token: m.token, Step: step})
		return err
	})
}

// end is barrier for an agent, which goes on after a step that was dropped.
func (m *membership) end(ctx context.Context, step uint64) error {
	var dropped *control.DroppedError
	err := m.call(ctx, "barrier", func(ctx context.Context) error {
		_, err := m.server.Barrier(ctx, &pb.BarrierRequest{Job: m.job, Sender: m.id, Token: m.token, Step: step})
		return control.DroppedOf(err)
	})
	if errors.As(err, &dropped) {
		return dropped
	}
	return err
}

// reduce is barrier, and returns the sums of the step, of rows of dim floats. The error is a [*control.DroppedError] if
// gradients of any host were refused; refused are those of this one.
func (m *membership) reduce(ctx context.Context, step uint64, dim int, refused *control.DroppedError, hot control.HotFrames) (sums control.Sums, err error) {
	req := &pb.ReduceRequest{Job: m.job, Sender: m.id, Token: m.token, Step: step, Hot: &pb.HotFrames{Sent: hot.Sent, Answered: hot.Answered}}
	if refused != nil {
		req.Refused = refused.Message()
	}
	var dropped *control.DroppedError
	err = m.call(ctx, "reduce", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := m.server.Reduce(ctx, req)
		if err == nil {
			sums, err = control.ReceiveSums(stream, dim)
		}
		return err
	})
	if errors.As(err, &dropped) {
		return sums, dropped
	}
	return sums, err
}

// report tells the server how far the worker is: all that it pushed until then is
// acknowledged. It returns when that is part of the weights.
func (m *membership) report(ctx context.Context, r workload.Reached) error {
	return m.call(ctx, "report", func(ctx context.Context) error {
		_, err := m.server.Report(ctx, &pb.ReportRequest{Job: m.job, Sender: m.id, Token: m.token, Steps: r.Steps, Epochs: uint32(r.Epochs), Ends: r.Ends})
		return err
	})
}

// done tells the server that the worker has finished.
func (m *membership) done(ctx context.Context) error {
	return m.call(ctx, "done", func(ctx context.Context) error {
		_, err := m.server.Done(ctx, &pb.DoneRequest{Job: m.job, Sender: m.id, Token: m.token})
		return err
	})
}

func (m *membership) call(ctx context.Context, name string, f func(context.Context) error) error {
	return control.CallError("parameter server", name, control.Repeat(ctx, f))
}

// leave ends the admission, at the aggregator first. A service that has ended
// cannot be told.
func (m *membership) leave() {
	m.stop() // the services' answers to leaving are no loss
	for _, leave := range slices.Backward(m.leaves) {
		_ = leave()
	}
	for _, c := range m.conns {
		c.Close()
	}
}

// joinRequest returns what a worker tells the services of itself.
func joinRequest(c *cluster.Config, self cluster.Worker, hot *packer.HotSet) (*pb.JoinRequest, error) {
	agree, err := agreement(c)
	if err != nil {
		return nil, err
	}
	mac, err := frameMAC(c, self.Host)
	if err != nil {
		return nil, err
	}
	fingerprint := hot.Fingerprint()
	return &pb.JoinRequest{
		Job: uint32(c.Job.ID), Sender: uint32(self.ID), Ip: self.Address.AsSlice(), Port: uint32(c.Port), Mac: mac,
		HotSet: fingerprint[:], Agree: agree,
	}, nil
}

// frameMAC returns the Ethernet address of a host's frames, nil over UDP sockets.
func frameMAC(c *cluster.Config, h cluster.Host) ([]byte, error) {
	if c.Backend != cluster.BackendAFXDP {
		return nil, nil
	}
	i, err := net.InterfaceByName(h.Interface)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", h.Interface, err)
	}
	if len(i.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s has no Ethernet address", h.Interface)
	}
	return i.HardwareAddr, nil
}

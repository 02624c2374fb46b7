package node

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/cluster"
	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/wire"
)

// membership is a worker's admission at the aggregator and at the parameter
// server. It lasts as long as its two streams.
type membership struct {
	job, id uint16
	epoch   uint16
	stripes int
	layout  packer.Layout

	mode       aggregator.Mode
	arithmetic aggregator.Arithmetic
	exp        int
	workers    int    // in rounds
	firstStep  uint64 // that the worker trains

	server pb.ParameterServerClient
	conns  []*grpc.ClientConn
	end    context.CancelFunc
}

// join admits a worker. If a peer withdraws the admission later, cancel is
// called with the reason.
func join(ctx context.Context, cancel context.CancelCauseFunc, env Env, self cluster.Worker, hot *packer.HotSet) (*membership, error) {
	c := env.Config
	security, err := control.LoadSecurity(c.TLS.CA, c.TLS.Cert, c.TLS.Key)
	if err != nil {
		return nil, err
	}
	fingerprint := hot.Fingerprint()
	req := &pb.JoinRequest{
		Job: uint32(c.Job.ID), Sender: uint32(self.ID), Ip: self.Address.AsSlice(), HotSet: fingerprint[:],
	}
	if c.Backend == cluster.BackendAFXDP {
		if req.Mac, err = hardwareAddr(self.Interface); err != nil {
			return nil, err
		}
	}
	streams, end := context.WithCancel(ctx)
	m := &membership{job: c.Job.ID, id: self.ID, end: end}

	// The server comes first: it creates the job at the aggregator.
	conn, err := control.Dial(ctx, "parameter server", c.Server.Control, security, startLimit, env.Log)
	if err != nil {
		m.leave()
		return nil, err
	}
	m.conns = append(m.conns, conn)
	m.server = pb.NewParameterServerClient(conn)
	joined, err := receiveFirst(m.server.Join(streams, req))("parameter server", cancel, streams)
	if err != nil {
		m.leave()
		return nil, err
	}
	conn, err = control.Dial(ctx, "aggregator", c.Switch.Control, security, startLimit, env.Log)
	if err != nil {
		m.leave()
		return nil, err
	}
	m.conns = append(m.conns, conn)
	admitted, err := receiveFirst(pb.NewAggregatorClient(conn).Join(streams, req))("aggregator", cancel, streams)
	if err != nil {
		m.leave()
		return nil, err
	}
	if joined.Epoch != admitted.Epoch {
		m.leave()
		return nil, fmt.Errorf("the parameter server is in epoch %d of job %d, the aggregator in epoch %d: restart the server", joined.Epoch, c.Job.ID, admitted.Epoch)
	}
	if admitted.Window < wire.DefaultWindow {
		m.leave()
		return nil, fmt.Errorf("the aggregator recognises duplicates within %d frames, this worker needs %d", admitted.Window, wire.DefaultWindow)
	}
	var known [2]bool
	m.mode, known[0] = control.ModeOf(admitted.Mode)
	m.arithmetic, known[1] = control.ArithmeticOf(admitted.Arithmetic)
	if known != [2]bool{true, true} {
		m.leave()
		return nil, fmt.Errorf("the aggregator runs job %d in mode %v with arithmetic %v, which this worker does not know: use the same version of Libra on all hosts", c.Job.ID, admitted.Mode, admitted.Arithmetic)
	}
	m.firstStep = joined.FirstStep
	m.exp, m.workers = int(admitted.Exponent), int(admitted.Workers)
	m.epoch, m.stripes = uint16(admitted.Epoch), int(admitted.Stripes)
	if admitted.Dense {
		m.layout = packer.Dense
	}
	return m, nil
}

// receiveFirst waits for the first message of a join stream, and then watches
// the stream: when the peer ends it, cancel is called.
func receiveFirst[T any](stream grpc.ServerStreamingClient[T], err error) func(role string, cancel context.CancelCauseFunc, ctx context.Context) (*T, error) {
	return func(role string, cancel context.CancelCauseFunc, ctx context.Context) (*T, error) {
		if err != nil {
			return nil, control.CallError(role, "join", err)
		}
		first, err := stream.Recv()
		if err != nil {
			return nil, control.CallError(role, "join", err)
		}
		go func() {
			if _, err := stream.Recv(); ctx.Err() == nil {
				cancel(control.CallError(role, "withdrew this worker", err))
			}
		}()
		return first, nil
	}
}

// done tells the server that the worker has finished.
func (m *membership) done(ctx context.Context) error {
	_, err := m.server.Done(ctx, &pb.DoneRequest{Job: uint32(m.job), Sender: uint32(m.id)})
	return control.CallError("parameter server", "done", err)
}

// report tells the server how many steps the worker has taken, over all runs of
// the job: all that it pushed in them is acknowledged.
func (m *membership) report(ctx context.Context, steps uint64) error {
	_, err := m.server.Report(ctx, &pb.ReportRequest{Job: uint32(m.job), Sender: uint32(m.id), Steps: steps})
	return control.CallError("parameter server", "report", err)
}

// leave ends the admission.
func (m *membership) leave() {
	m.end()
	for _, c := range m.conns {
		c.Close()
	}
}

func hardwareAddr(name string) ([]byte, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	if len(i.HardwareAddr) != 6 {
		return nil, fmt.Errorf("interface %s has no Ethernet address", name)
	}
	return i.HardwareAddr, nil
}

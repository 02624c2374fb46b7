// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/peer"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/simulation/world"
)

// Goroutines that begin calls, or answer them, at the same time would write to their connection in
// random order. So they become actors, one by one.

// readBuffer is the size of gRPC's reads. A life makes many connections; buffers of gRPC's default
// size would take a tenth of its memory.
const readBuffer = 1 << 11

func (p *process) clientOptions() []grpc.DialOption {
	note := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, conn, o...)
		p.noteServed(method, err)
		return err
	})
	return append(clientOptions(p.Process, p.c.conns, func(req any) {
		switch req := req.(type) {
		case *pb.ReportRequest:
			p.c.accounts.recordSteps(p, req.Steps, req.Instance)
		case *pb.SettleRequest:
			if req.Settled {
				p.c.accounts.recordSettled(p)
			}
		case *pb.DoneRequest:
			p.c.Mu.Lock()
			p.c.fence.countEvent(dones)
			p.c.Mu.Unlock()
		case *pb.BarrierRequest:
			p.c.accounts.recordSteps(p, req.Step+1, req.Instance)
		}
	}), note)
}

// clientOptions are those of a process that calls services. calls is told of each request.
func clientOptions(p *world.Process, conns *world.Connections, calls func(req any)) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithReadBufferSize(readBuffer),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return conns.Dial(ctx, p, addr)
		}),
		grpc.WithUnaryInterceptor(func(
			ctx context.Context, method string, req, reply any,
			conn *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption,
		) error {
			awaitTurn(ctx, p, method, conn)
			calls(req)
			return invoke(ctx, method, req, reply, conn, o...)
		}),
		grpc.WithStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn,
			method string, open grpc.Streamer, o ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			awaitTurn(ctx, p, method, conn)
			return open(ctx, desc, conn, method, o...)
		}),
	}
}

// awaitTurn is where a call waits for its turn. During connection setup, all calls would otherwise
// wait together in gRPC, and continue together.
func awaitTurn(ctx context.Context, p *world.Process, method string, conn *grpc.ClientConn) {
	until, _ := ctx.Deadline()
	p.Turn("calls "+filepath.Base(method), func() bool {
		return conn.GetState() != connectivity.Connecting || ctx.Err() != nil || p.Dead()
	}, until)
}

// serverOptions are those of a process that serves.
func serverOptions(p *world.Process) []grpc.ServerOption {
	answers := func(ctx context.Context, method string) {
		name := "answers " + filepath.Base(method)
		if from, ok := peer.FromContext(ctx); ok {
			name += " of " + from.Addr.String()
		}
		p.Turn(name, nil, time.Time{})
	}
	return []grpc.ServerOption{
		grpc.ReadBufferSize(readBuffer),
		grpc.UnaryInterceptor(func(
			ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
		) (any, error) {
			reply, err := handle(ctx, req)
			answers(ctx, info.FullMethod)
			return reply, err
		}),
		grpc.StreamInterceptor(func(
			srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
		) error {
			if strings.HasSuffix(info.FullMethod, "ParameterServer/Join") {
				stream = &tellingStream{ServerStream: stream, turn: func() { answers(stream.Context(), "more of Join") }}
			}
			err := handle(srv, stream)
			answers(stream.Context(), info.FullMethod)
			return err
		}),
	}
}

// tellingStream is a stream whose messages after the first wait for their turn: the streams of all
// workers have news at the same time.
type tellingStream struct {
	grpc.ServerStream
	told bool
	turn func()
}

// SendMsg sends a message.
func (s *tellingStream) SendMsg(m any) error {
	if s.told {
		s.turn()
	}
	s.told = true
	return s.ServerStream.SendMsg(m)
}

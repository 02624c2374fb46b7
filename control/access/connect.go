// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	pb "github.com/libra-ina/libra/control/controlpb"
)

// handshakeLimit bounds a caller's connection set-up, because a service that ends waits for pending
// handshakes. It is longer than [Outage]: the link may go down during that, too.
const handshakeLimit = silentAfter

// NewServer returns a gRPC server with the settings that all control services use, and the given
// options.
func NewServer(sec Security, more ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(watchful{sec.server()}),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.WriteBufferSize(bufferBytes),
		grpc.WaitForHandlers(true), // handlers use the data plane, which is closed later
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}, more...)...)
}

// SwitchDaemon is what errors of callers call the service of a switch.
const SwitchDaemon = "switch daemon"

// Peer is a control service: its name in messages and, with TLS, the role that its certificate must
// have.
type Peer struct {
	name string
	role string // "" for any
	job  []uint32
}

// TheSwitch is the daemon of a switch; its certificate must be for libra://switch.
func TheSwitch() Peer { return Peer{name: SwitchDaemon, role: roleSwitch} }

// ServerOf is the parameter server of a job; its certificate must be for
// libra://server/JOB.
func ServerOf(job uint16) Peer {
	return Peer{name: "parameter server", role: roleServer, job: []uint32{uint32(job)}}
}

// EitherService is a switch daemon or a parameter server; any certificate of the authority is
// accepted.
func EitherService() Peer { return Peer{name: "control service"} }

// Named returns the same peer with another name in messages.
func (p Peer) Named(name string) Peer {
	p.name = name
	return p
}

// noticeAfter is how long Dial waits before it logs that it does.
const noticeAfter = time.Second

// Dial connects to a control service and waits until it answers, at most for the given time. If
// that is more than a second, it logs once that it waits. The options are added to those of all
// control connections. A nil log means [slog.Default].
func Dial(ctx context.Context, peer Peer, addr netip.AddrPort, sec Security, limit time.Duration, log *slog.Logger,
	more ...grpc.DialOption) (*grpc.ClientConn, error) {
	role := peer.name
	log = cmp.Or(log, slog.Default())
	conn, err := grpc.NewClient("passthrough:///"+addr.String(),
		append(sec.DialOptions(addr.Addr().String(), peer), more...)...)
	if err != nil {
		return nil, fmt.Errorf("%s at %v: %w", role, addr, err)
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if limit > noticeAfter { // whoever waits for less may try again for hours
		notice := time.AfterFunc(noticeAfter, func() {
			log.Info("waiting for the "+role, "control", addr, "at_most", limit)
		})
		defer notice.Stop()
	}
	var broken error // why the latest connection failed
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return conn, nil
		}
		if state == connectivity.TransientFailure {
			if failed := connectionError(ctx, conn); ctx.Err() == nil { // else the end of ctx is the reason
				broken = failed
			}
			if mismatch, certain := sec.mismatch(broken); certain {
				conn.Close() // waiting does not change certificates
				return nil, fmt.Errorf("%s at %v: %w", role, addr, mismatch)
			}
		}
		if state == connectivity.Idle {
			conn.Connect()
		}
		// A connection that fails again stays in the same state, with another reason.
		look, done := context.WithTimeout(ctx, time.Second)
		conn.WaitForStateChange(look, state)
		done()
		if ctx.Err() != nil {
			conn.Close()
			mismatch, _ := sec.mismatch(broken)
			switch why := context.Cause(ctx); {
			case !errors.Is(ctx.Err(), context.DeadlineExceeded):
				return nil, fmt.Errorf("%s at %v: %w", role, addr, why)
			case mismatch != nil:
				return nil, fmt.Errorf("%s at %v: %w", role, addr, mismatch)
			case caller.Err() != nil:
				return nil, fmt.Errorf("%s at %v did not answer: %w: is it running, and is the address right?", role, addr, why)
			}
			return nil, fmt.Errorf("%s at %v did not answer within %v: is it running, and is the address right?", role, addr,
				limit)
		}
	}
}

// windowBytes is the amount that a service may send ahead of its client's reads, and bufferBytes
// the size of one read or write system call.
const (
	windowBytes = 8 << 20
	bufferBytes = 256 << 10
)

// DialOptions returns the settings that all control connections use. The name is the host's, for
// which the peer's certificate must be valid.
func (s Security) DialOptions(name string, peer Peer) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(watchful{s.client(name, peer)}),
		// A harvest or the sums of a step are sent at once, without waiting for window updates.
		// Fixed windows also avoid the pings that estimate them.
		grpc.WithInitialWindowSize(windowBytes),
		grpc.WithInitialConnWindowSize(windowBytes),
		grpc.WithReadBufferSize(bufferBytes),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPings, Timeout: pingTimeout,
			PermitWithoutStream: true}),
		// The processes of a cluster start in any order: retry quickly.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
	}
}

// connectionError returns why a connection is in transient failure: a call that does not wait for
// the connection to become ready fails with the reason.
func connectionError(ctx context.Context, conn *grpc.ClientConn) error {
	return conn.Invoke(ctx, "/libra.control.v1.Aggregator/Stats", &pb.StatsRequest{}, &pb.AggregatorStats{})
}

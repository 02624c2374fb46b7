// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

// lines are the connections that were made with their dial option.
type lines struct {
	mu    sync.Mutex
	conns []net.Conn
	down  bool
}

func (l *lines) option(n *network) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.down {
			return nil, grpctest.ErrCut
		}
		c, err := n.Connect(ctx, n.Addr())
		if err == nil {
			l.conns = append(l.conns, c)
		}
		return c, err
	})
}

// cut breaks the connections; while they are down, no others are made.
func (l *lines) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
	l.conns, l.down = nil, down
}

// Whoever follows a server, or is in a job, has the time that the service gives: a connection
// that is back within it is no loss, and one that stays away is a loss after it, not before.
func TestOutagesWithinTheGrace(t *testing.T) {
	const grace = 7 * time.Second
	for name, stay := range map[string]func(*testing.T, *lines, func(error)){
		"a server that follows": func(t *testing.T, at *lines, lost func(error)) {
			s := startServer(t, func(c *ParameterServerConfig) { c.Grace = grace })
			conn, err := grpc.NewClient("passthrough:///"+grpctest.Address,
				append(access.Security{}.DialOptions("192.0.2.1", access.EitherService()), at.option(s.network))...)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			if err := Follow(t.Context(), conn, 5, 1, lost); err != nil {
				t.Fatal(err)
			}
		},
		"a worker": func(t *testing.T, at *lines, lost func(error)) {
			l := startAggregator(t, func(c *AggregatorConfig) { c.Grace, c.Lease = grace, time.Hour })
			l.create(t, spec())
			m, err := Join(t.Context(), JoinConfig{
				Job: 5, Worker: 1, From: netip.AddrPortFrom(workerIP, 19522), HotSet: hotSet, NoServer: true,
				Aggregator: netip.MustParseAddrPort(grpctest.Address), Dial: []grpc.DialOption{at.option(l.network)},
				Lost: lost, Log: quiet,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Leave() })
		},
		"a worker of rounds": func(t *testing.T, at *lines, lost func(error)) {
			l := startAggregator(t, func(c *AggregatorConfig) { c.Grace, c.Lease = grace, time.Hour })
			cfg := l.roundsOf(7)
			cfg.Lost, cfg.Dial = lost, []grpc.DialOption{at.option(l.network)}
			all := joinRounds(t, []RoundsConfig{l.roundsOf(4), cfg, l.roundsOf(9)}, 0, 0, 0)
			t.Cleanup(func() {
				for _, r := range []*Rounds{all[2], all[1], all[0]} {
					r.end(errors.New("the test has ended"))
					r.conn.Close()
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var at lines
				lost := make(chan error, 2)
				stay(t, &at, func(err error) { lost <- err })
				for _, away := range []time.Duration{0, grace / 2, grace - 2*longestDelay} {
					at.cut(true)
					time.Sleep(away)
					at.cut(false)
					time.Sleep(time.Minute)
					if len(lost) > 0 {
						t.Fatalf("lost after %v: %v", away, <-lost)
					}
				}
				at.cut(true)
				began := time.Now()
				if err := <-lost; err == nil {
					t.Error("lost without a reason")
				}
				if took := time.Since(began); took < grace-longestDelay || took > grace+2*longestDelay {
					t.Errorf("lost after %v, the grace is %v", took, grace)
				}
				time.Sleep(time.Minute)
				if len(lost) > 0 {
					t.Errorf("lost twice: %v", <-lost)
				}
			})
		})
	}
}

// deaf has no Follow, as releases before it.
type deaf struct {
	pb.UnimplementedParameterServerServer
}

// A server of another job is not followed, and of a release that cannot be followed nothing is
// heard.
func TestFollowRefused(t *testing.T) {
	ended := func(err error) { t.Errorf("ended: %v", err) }
	s := startServer(t)
	err := Follow(t.Context(), s.dial(t, access.Security{}, "192.0.2.3").ClientConn, 6, 1, ended)
	if !contains(err, "parameter server 0: follow: job 6 is not served here; this server serves job 5") {
		t.Errorf("of another job: %v", err)
	}
	old := newNetwork(t, access.Security{}, func(g *grpc.Server) { pb.RegisterParameterServerServer(g, deaf{}) })
	if err := Follow(t.Context(), old.dial(t, access.Security{}, "192.0.2.3").ClientConn, 5, 1, ended); err != nil {
		t.Errorf("of an earlier release: %v", err)
	}
}

// Those that follow learn once, and at once, how the job has ended, and what kind of end it is.
func TestFollowersLearnTheEnd(t *testing.T) {
	why := errors.New("workers [2] have not finished")
	for name, c := range map[string]struct{ why, is error }{
		"all have finished": {}, "stopped": {why: why},
		"removed":  {errors.Join(why, ErrRemoved), ErrRemoved},
		"diverged": {errors.Join(why, ErrDiverged), ErrDiverged},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startServer(t)
				told := make(chan error, 2)
				if err := Follow(t.Context(), s.dial(t, access.Security{}, "192.0.2.3").ClientConn, 5, 1, func(err error) { told <- err }); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if len(told) > 0 {
					t.Fatalf("ended by itself: %v", <-told)
				}
				began := time.Now()
				s.service.End(c.why)
				s.service.End(errors.New("a later reason"))
				err := <-told
				if took := time.Since(began); took != 0 {
					t.Errorf("told after %v", took)
				}
				if c.why == nil {
					if err != nil {
						t.Errorf("ended with %v", err)
					}
					return
				}
				if !contains(err, "parameter server 0 has ended the job") || !contains(err, why.Error()) || status.Code(err) == codes.Unavailable {
					t.Errorf("ended with %v", err)
				}
				for _, kind := range []error{ErrRemoved, ErrDiverged} {
					if errors.Is(err, kind) != errors.Is(c.is, kind) {
						t.Errorf("ended with %v: whether %v is %v", err, kind, errors.Is(err, kind))
					}
				}
			})
		})
	}
}

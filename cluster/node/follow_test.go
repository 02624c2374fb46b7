// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/control"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// When server 0 ends, because it is told to or because its job was removed, the others end, too,
// although no worker has joined them, and say why. They start in any order.
func TestServersEndWithTheFirst(t *testing.T) {
	for name, sync := range map[string]bool{"in step": true, "asynchronous": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			c.Job.Sync = sync
			shard(t, c, 3)
			startSwitch(t, c)
			var all lines
			log := all.logger()
			run := func(ctx context.Context, i int) (ready chan struct{}, ended chan error) {
				ready, ended = make(chan struct{}), make(chan error, 1)
				go func() {
					_, err := RunServer(ctx, Env{Config: c, Server: i, Log: log, Ready: func() { close(ready) }})
					ended <- err
				}()
				return ready, ended
			}
			ready, last := run(soon(t), 2)
			<-ready
			ctx, end := context.WithCancel(soon(t))
			defer end()
			first, ended := run(ctx, 0)
			<-first
			ready, other := run(soon(t), 1)
			<-ready
			for limit := soon(t); strings.Count(all.String(), "another server follows") < 2; time.Sleep(time.Millisecond) {
				if limit.Err() != nil {
					t.Fatalf("the others do not follow:\n%s", all.String())
				}
			}
			end()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("server 0 ends with %v", err)
			}
			for i, ended := range []chan error{other, last} {
				err := <-ended
				if err == nil || !strings.Contains(err.Error(), "parameter server 0 has ended the job") || errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("server %d ends with %v", i+1, err)
				} else if why := "workers [1] have not finished: context canceled"; !strings.Contains(err.Error(), why) {
					t.Errorf("server %d ends with %v, without the reason of server 0: %s", i+1, err, why)
				}
			}
		})
	}
}

// A job that an operator removes is over at all of its servers: the others do not take it for a
// failure, after which their units would start them again.
func TestAllServersSayThatTheJobWasRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	shard(t, c, 2)
	startSwitch(t, c)
	var all lines
	ended := make(chan error, 2)
	for i := range c.Servers {
		ready := make(chan struct{})
		go func() {
			_, err := RunServer(soon(t), Env{Config: c, Server: i, Log: all.logger(), Ready: func() { close(ready) }})
			ended <- err
		}()
		<-ready
	}
	for limit := soon(t); !strings.Contains(all.String(), "another server follows"); time.Sleep(time.Millisecond) {
		if limit.Err() != nil {
			t.Fatalf("the other does not follow:\n%s", all.String())
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+c.Switch.Control.String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pb.NewAggregatorClient(conn).RemoveJob(soon(t), &pb.RemoveJobRequest{Job: uint32(c.Job.ID)}); err != nil {
		t.Fatal(err)
	}
	for range c.Servers {
		if err := <-ended; !errors.Is(err, control.ErrRemoved) || !strings.Contains(err.Error(), "job 5 was removed by an operator") {
			t.Errorf("a server ends with %v", err)
		}
	}
}

// When training has diverged at server 0, those that follow keep the checkpoints that they have,
// too. Of another end they learn the reason alone.
func TestFollowersKeepTheirCheckpoints(t *testing.T) {
	failed := errors.New("a harvest failed")
	for want, why := range map[bool]error{true: fmt.Errorf("%w: %w", control.ErrDiverged, failed), false: failed} {
		t.Run(why.Error(), func(t *testing.T) {
			t.Parallel()
			s := newServer(t, false)
			first := control.NewParameterServer(t.Context(), control.ParameterServerConfig{Job: s.env.Config.Job.ID, Log: testLog(t)})
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			host := access.NewServer(access.Security{})
			pb.RegisterParameterServerServer(host, first)
			go func() { _ = host.Serve(listener) }()
			defer host.Stop()
			s.env.Config.Servers = []cluster.Server{{Control: listener.Addr().(*net.TCPAddr).AddrPort()}, {}}
			s.env.Server = 1
			ctx, cancel := context.WithCancelCause(t.Context())
			here := control.NewParameterServer(ctx, control.ParameterServerConfig{Workers: []uint16{1}})
			go s.followFirst(ctx, cancel, here, access.Security{})
			first.End(why)
			<-ctx.Done()
			if got := context.Cause(ctx); !strings.Contains(got.Error(), why.Error()) || s.diverged.Load() != want {
				t.Errorf("it ends with %v, and has diverged: %v", got, s.diverged.Load())
			}
		})
	}
}

// A server whose workers have not finished ends a while after server 0, with its reason. One whose
// workers have finished applies the rest, however long that takes.
func TestServerMayFinishAfterTheFirst(t *testing.T) {
	stopped := errors.New("stopped")
	for name, c := range map[string]struct {
		workers   []uint16 // that have not finished
		why, want error
	}{
		"server 0 was stopped":        {[]uint16{1}, stopped, stopped},
		"server 0 has finished":       {[]uint16{1}, nil, errOthersFinished},
		"stopped, and here all done":  {nil, stopped, nil},
		"finished, and here all done": {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				service := control.NewParameterServer(ctx, control.ParameterServerConfig{Workers: c.workers})
				go endAfterFirst(ctx, cancel, service, c.why)
				time.Sleep(endWithin - time.Millisecond)
				if ctx.Err() != nil {
					t.Errorf("it has no time to end by itself: %v", context.Cause(ctx))
				}
				time.Sleep(time.Hour)
				if got := context.Cause(ctx); !errors.Is(got, c.want) {
					t.Errorf("it ends with %v, want %v", got, c.want)
				}
			})
		})
	}
}

// admission is the stream of a worker that joins a service of this process.
type admission struct {
	grpc.ServerStream
	ctx   context.Context
	token chan []byte
}

func (a admission) Context() context.Context { return a.ctx }

func (a admission) Send(m *pb.Membership) error {
	a.token <- m.Token
	return nil
}

// anyone admits every worker.
type anyone struct{}

func (anyone) Admit(context.Context, uint16, netip.AddrPort, uint16) error { return nil }
func (anyone) Remove(context.Context, uint16) error                        { return nil }

// A server whose last worker finishes shortly after server 0 has ended applies the rest, too.
func TestServerFinishesShortlyAfterTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		service := control.NewParameterServer(ctx, control.ParameterServerConfig{Workers: []uint16{1}, Members: anyone{}})
		worker := admission{ctx: ctx, token: make(chan []byte, 1)}
		go func() { _ = service.Join(&pb.JoinRequest{Sender: 1, Ip: []byte{10, 0, 0, 1}}, worker) }() // ends with ctx
		token := <-worker.token
		go endAfterFirst(ctx, cancel, service, nil)
		time.Sleep(endWithin / 2)
		if _, err := service.Done(ctx, &pb.DoneRequest{Sender: 1, Token: token}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if ctx.Err() != nil {
			t.Errorf("it ends with %v", context.Cause(ctx))
		}
	})
}

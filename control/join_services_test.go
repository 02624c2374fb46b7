// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// services are an aggregator and the parameter server of its job 5, on the loopback interface.
type services struct {
	join                JoinConfig // of worker 1
	aggregator, server  *grpc.Server
	endDaemon, endTrain context.CancelFunc
}

func startServices(t *testing.T, change ...func(*ParameterServerConfig)) *services {
	t.Helper()
	s := &services{}
	serve := func(register func(*grpc.Server)) (*grpc.Server, netip.AddrPort) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := NewServer(Security{})
		register(server)
		go func() { _ = server.Serve(listener) }() // ends with Stop
		t.Cleanup(server.Stop)
		return server, listener.Addr().(*net.TCPAddr).AddrPort()
	}
	model, err := aggregator.NewModel(aggregator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	s.endDaemon = end
	daemon := NewAggregator(ctx, AggregatorConfig{Plane: model, Stripes: 10, Log: quiet})
	t.Cleanup(daemon.Close)
	s.aggregator, s.join.Aggregator = serve(func(g *grpc.Server) { pb.RegisterAggregatorServer(g, daemon) })
	conn, err := Dial(t.Context(), TheAggregator(), s.join.Aggregator, Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	job, err := CreateJob(t.Context(), pb.NewAggregatorClient(conn), spec(), 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := job.Hold(t.Context(), func(error) {}); err != nil {
		t.Fatal(err)
	}
	cfg := ParameterServerConfig{
		Job: 5, Instance: job.Instance, Port: 19522, Dimension: 1, HotSet: hotSet, Workers: []uint16{1, 2}, Members: &roll{}, Sync: true,
		Grace:  200 * time.Millisecond,
		Commit: func(context.Context, uint64) error { return nil },
		Log:    quiet,
	}
	for _, f := range change {
		f(&cfg)
	}
	ctx, s.endTrain = context.WithCancel(t.Context())
	service := NewParameterServer(ctx, cfg)
	t.Cleanup(service.Close)
	s.server, s.join.Server = serve(func(g *grpc.Server) { pb.RegisterParameterServerServer(g, service) })
	s.join.Job, s.join.Worker, s.join.From, s.join.HotSet = 5, 1, netip.MustParseAddrPort("127.0.0.1:19522"), hotSet
	s.join.Limit, s.join.Log = time.Minute, quiet
	return s
}

// Missing fields of the caller are refused at once, by name: waiting would not reveal them.
func TestJoinNamesMissingFields(t *testing.T) {
	good := JoinConfig{
		Job: 5, Worker: 1, From: netip.MustParseAddrPort("127.0.0.1:19522"), HotSet: hotSet, Log: quiet,
		Server: netip.MustParseAddrPort("127.0.0.1:1"), Aggregator: netip.MustParseAddrPort("127.0.0.1:1"),
	}
	for want, change := range map[string]func(*JoinConfig){
		"JoinConfig.Server is missing":                                   func(c *JoinConfig) { c.Server = netip.AddrPort{} },
		"JoinConfig.Server 127.0.0.1:0 has no port":                      func(c *JoinConfig) { c.Server = netip.MustParseAddrPort("127.0.0.1:0") },
		"JoinConfig.Aggregator is missing":                               func(c *JoinConfig) { c.Aggregator = netip.AddrPort{} },
		"JoinConfig.From is missing":                                     func(c *JoinConfig) { c.From = netip.AddrPort{} },
		"JoinConfig.From 127.0.0.1:0 has no port":                        func(c *JoinConfig) { c.From = netip.MustParseAddrPort("127.0.0.1:0") },
		"JoinConfig.From 0.0.0.0:19522 is not the address of one host":   func(c *JoinConfig) { c.From = netip.MustParseAddrPort("0.0.0.0:19522") },
		"JoinConfig.From 224.0.0.1:19522 is not the address of one host": func(c *JoinConfig) { c.From = netip.MustParseAddrPort("224.0.0.1:19522") },
		"JoinConfig.From [::ffff:0.0.0.0]:19522 is not the address of":   func(c *JoinConfig) { c.From = netip.MustParseAddrPort("[::ffff:0.0.0.0]:19522") },
		"JoinConfig.HotSet is missing":                                   func(c *JoinConfig) { c.HotSet = nil },
		"JoinConfig.Limit -1s is negative":                               func(c *JoinConfig) { c.Limit = -time.Second },
	} {
		cfg := good
		change(&cfg)
		// The context limits the test if Join waits.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		m, err := Join(ctx, cfg)
		cancel()
		if m != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v; want %q in the error", m, err, want)
		}
	}
}

// The address of another of Libra's services is the likeliest mistake: both have a control address.
func TestJoinAtTheWrongService(t *testing.T) {
	s := startServices(t)
	for want, change := range map[string]func(*JoinConfig){
		"parameter server at " + s.join.Aggregator.String(): func(c *JoinConfig) { c.Server = c.Aggregator },
		"aggregator at " + s.join.Server.String():           func(c *JoinConfig) { c.Aggregator = c.Server },
	} {
		cfg := s.join
		change(&cfg)
		want += ": join: another service answers there: is the address right?"
		if m, err := Join(t.Context(), cfg); m != nil || err == nil || err.Error() != want {
			t.Errorf("%v, %v; want %q", m, err, want)
		}
	}
}

// Two answers that do not match end both admissions.
func TestJoinThatIsNotUsableIsNone(t *testing.T) {
	s := startServices(t, func(c *ParameterServerConfig) { c.Instance++ })
	m, err := Join(t.Context(), s.join)
	if m != nil || err == nil || !strings.Contains(err.Error(), "restart the server") {
		t.Errorf("%v, %v", m, err)
	}
}

// A service's answer to leaving may arrive before the context of a waiting call has ended.
func TestCallsEndByLeaving(t *testing.T) {
	m := &Membership{servers: make([]joinedServer, 1)}
	m.ctx, m.end = context.WithCancelCause(t.Context())
	err := m.call(t.Context(), "barrier", func(context.Context, *joinedServer) error {
		m.Leave()
		return status.Error(codes.FailedPrecondition, "worker 1 left before it had finished")
	})
	if !errors.Is(err, errLeft) {
		t.Errorf("%v, want %q in it", err, errLeft)
	}
}

// A waiting call ends when the admission does, although its own context continues and Lost is not
// read.
func TestCallsEndWithTheAdmission(t *testing.T) {
	for want, end := range map[string]func(*services, *Membership){
		"barrier: parameter server: withdrew this worker: ": func(s *services, _ *Membership) { s.server.Stop() },
		"barrier: aggregator: withdrew this worker: ":       func(s *services, _ *Membership) { s.endDaemon() },
		"barrier: the worker has left the job":              func(_ *services, m *Membership) { m.Leave() },
	} {
		s := startServices(t)
		m, err := Join(t.Context(), s.join)
		if err != nil {
			t.Fatal(err)
		}
		waits := make(chan error, 1)
		go func() { waits <- m.Barrier(t.Context(), m.FirstStep) }() // for worker 2
		time.Sleep(20 * time.Millisecond)
		end(s, m)
		select {
		case err = <-waits:
		case <-time.After(20 * time.Second):
			t.Fatalf("%q: the barrier waits on", want)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
		want = strings.Replace(want, "barrier", "done", 1)
		if err := m.Done(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
		m.Leave()
		m.Leave() // has nothing to do
	}
}

// Two services may end an admission; its end is reported once, and not after Leave.
func TestLostIsToldOnce(t *testing.T) {
	told := make(chan error, 10)
	s := startServices(t)
	s.join.Lost = func(why error) { told <- why }
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	s.endTrain()
	s.endDaemon()
	select {
	case why := <-told:
		if why == nil {
			t.Error("the loss of an admission was told without a reason")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the loss of an admission was not told")
	}
	time.Sleep(100 * time.Millisecond) // for the other service
	m.lose(errors.New("should it not have come yet"), s.join.Lost)
	m.Leave()
	if n := len(told); n != 0 {
		t.Errorf("the loss of an admission was told %d times more", n)
	}

	left := startServices(t)
	left.join.Lost = s.join.Lost
	if m, err = Join(t.Context(), left.join); err != nil {
		t.Fatal(err)
	}
	m.Leave()
	left.endTrain()
	left.endDaemon()
	time.Sleep(100 * time.Millisecond)
	m.lose(errors.New("should neither have come yet"), left.join.Lost)
	if len(told) != 0 {
		t.Error("the end of a service was told to a worker that had left")
	}
}

// The error shows the caller that its own time limit has ended a call.
func TestDeadlineOfACall(t *testing.T) {
	s := startServices(t)
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := m.Barrier(ctx, m.FirstStep); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// Omitted optional fields get their defaults, instead of a panic at the first message or request.
func TestServicesWithoutOptions(t *testing.T) {
	s := startServices(t, func(c *ParameterServerConfig) { c.Log, c.Commit = nil, nil })
	s.join.Log = nil
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	conn, err := Dial(t.Context(), EitherService(), s.join.Server, Security{}, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, stats, err := Query(t.Context(), conn); err != nil || stats == nil {
		t.Errorf("%v, %v", stats, err)
	}
	if err := m.Barrier(t.Context(), m.FirstStep); err == nil || !strings.Contains(err.Error(), "job 5 does not take steps together") {
		t.Errorf("barrier: %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/libra-ina/libra/aggregator"
	"github.com/libra-ina/libra/control/access"
	pb "github.com/libra-ina/libra/control/controlpb"
)

// services are an aggregator and the parameter server of its job 5, on the loopback interface.
type services struct {
	join                JoinConfig // of worker 1
	daemon              *Aggregator
	service             *ParameterServer
	members             *roll // of the parameter server
	aggregator, server  *grpc.Server
	endDaemon, endTrain context.CancelFunc
}

func startServices(t *testing.T, change ...func(*ParameterServerConfig)) *services {
	t.Helper()
	s := &services{members: &roll{}}
	serve := func(register func(*grpc.Server)) (*grpc.Server, netip.AddrPort) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := access.NewServer(access.Security{})
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
	s.daemon = daemon
	t.Cleanup(daemon.Close)
	s.aggregator, s.join.Aggregator = serve(func(g *grpc.Server) { pb.RegisterAggregatorServer(g, daemon) })
	conn, err := access.Dial(t.Context(), access.TheSwitch(), s.join.Aggregator, access.Security{}, time.Minute, quiet)
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
		Job: 5, Instance: job.Instance, Port: 19522, Dimension: 1, HotSet: hotSet, Workers: []uint16{1, 2}, Members: s.members, Sync: true,
		Grace:  200 * time.Millisecond,
		Commit: func(context.Context, uint64) error { return nil },
		Log:    quiet,
	}
	for _, f := range change {
		f(&cfg)
	}
	ctx, s.endTrain = context.WithCancel(t.Context())
	service := NewParameterServer(ctx, cfg)
	s.service = service
	t.Cleanup(service.Close)
	s.server, s.join.Server = serve(func(g *grpc.Server) { pb.RegisterParameterServerServer(g, service) })
	s.join.Job, s.join.Worker, s.join.From, s.join.HotSet = 5, 1, netip.MustParseAddrPort("127.0.0.1:19522"), hotSet
	s.join.Limit, s.join.Log = time.Minute, quiet
	return s
}

// senders counts those that the aggregator has admitted, and that the parameter server has.
func (s *services) senders(t *testing.T) (atAggregator, atServer int) {
	t.Helper()
	conn, err := access.Dial(t.Context(), access.TheSwitch(), s.join.Aggregator, access.Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stats, _, err := Query(t.Context(), conn)
	if err != nil || len(stats.GetJobs()) != 1 {
		t.Fatalf("%v, %v", stats, err)
	}
	s.members.mu.Lock()
	defer s.members.mu.Unlock()
	return int(stats.Jobs[0].Senders), len(s.members.members)
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
		"switch daemon at " + s.join.Server.String():        func(c *JoinConfig) { c.Aggregator = c.Server },
	} {
		cfg := s.join
		change(&cfg)
		want += ": join: a different service answers there: is the address right?"
		if m, err := Join(t.Context(), cfg); m != nil || err == nil || err.Error() != want {
			t.Errorf("%v, %v; want %q", m, err, want)
		}
	}
}

// Two answers that do not match end both admissions.
func TestJoinThatIsNotUsableIsNone(t *testing.T) {
	s := startServices(t, func(c *ParameterServerConfig) { c.Instance++ })
	s.join.Limit = time.Second // it joins again until then
	m, err := Join(t.Context(), s.join)
	if m != nil || err == nil || !strings.Contains(err.Error(), "restart the server") {
		t.Errorf("%v, %v", m, err)
	}
	if a, p := s.senders(t); a != 0 || p != 0 {
		t.Errorf("the aggregator still has %d senders, the server %d", a, p)
	}
}

// Who leaves is gone at once, from both services, and closes its connections.
func TestMembershipLeaves(t *testing.T) {
	s := startServices(t)
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	if a, p := s.senders(t); a != 1 || p != 1 {
		t.Errorf("the aggregator has %d senders, the server %d; one has joined", a, p)
	}
	conns := append(slices.Clone(m.conns), m.kept.here.conn)
	m.Leave()
	if a, p := s.senders(t); a != 0 || p != 0 {
		t.Errorf("the aggregator still has %d senders, the server %d", a, p)
	}
	for _, c := range conns {
		if state := c.GetState(); state != connectivity.Shutdown {
			t.Errorf("a connection is %v", state)
		}
	}
	if len(conns) != 2 {
		t.Errorf("%d connections, want that of each service", len(conns))
	}
}

// Each of several servers has an epoch, a first step and checkpoints of its own, in the order of
// their indices.
func TestJoinOfServers(t *testing.T) {
	s := startServices(t, func(c *ParameterServerConfig) {
		c.FirstStep, c.Checkpoints = func(uint16) uint64 { return 4 }, []uint64{4, 2}
	})
	more := &roll{}
	service := NewParameterServer(t.Context(), ParameterServerConfig{
		Job: 5, Port: 19522, Dimension: 1, HotSet: hotSet, Workers: []uint16{1, 2}, Members: more, Sync: true, Log: quiet,
		Agree:     map[string]string{IndexField: "1"},
		FirstStep: func(uint16) uint64 { return 7 }, Checkpoints: []uint64{7, 5},
	})
	t.Cleanup(service.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := access.NewServer(access.Security{})
	pb.RegisterParameterServerServer(server, service)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	other := s.join
	other.Worker, other.Server, other.MoreServers = 2, listener.Addr().(*net.TCPAddr).AddrPort(), []netip.AddrPort{s.join.Server}
	if _, err := Join(t.Context(), other); err == nil || !strings.Contains(err.Error(), IndexField+": 0 here, 1 at the server") {
		t.Errorf("servers in another order: %v", err)
	}
	s.join.MoreServers = []netip.AddrPort{other.Server}
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	first, _ := s.members.of(1)
	second, _ := more.of(1)
	if m.ServerEpoch != first.epoch || !slices.Equal(m.MoreEpochs, []uint16{second.epoch}) {
		t.Errorf("epochs %d and %v, want %d and %d", m.ServerEpoch, m.MoreEpochs, first.epoch, second.epoch)
	}
	if m.FirstStep != 4 || !slices.Equal(m.MoreFirstSteps, []uint64{7}) {
		t.Errorf("first steps %d and %v", m.FirstStep, m.MoreFirstSteps)
	}
	if !slices.EqualFunc(m.Checkpoints, [][]uint64{{4, 2}, {7, 5}}, slices.Equal[[]uint64]) {
		t.Errorf("checkpoints of the steps %v", m.Checkpoints)
	}
}

// shown is a stream of a call, which tells the tokens of requests to join.
type shown struct {
	grpc.ClientStream
	tokens chan<- []byte
}

func (s shown) SendMsg(m any) error {
	if r, ok := m.(*pb.JoinRequest); ok {
		s.tokens <- r.Token
	}
	return s.ClientStream.SendMsg(m)
}

// When connections break, the worker joins both services again, as the one that they have admitted.
func TestJoinAgain(t *testing.T) {
	s := startServices(t, func(c *ParameterServerConfig) { c.Grace = time.Minute })
	var mu sync.Mutex
	var sockets []net.Conn
	tokens := make(chan []byte, 100)
	s.join.Dial = []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			mu.Lock()
			defer mu.Unlock()
			sockets = append(sockets, c)
			return c, err
		}),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, streamer grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := streamer(ctx, d, c, method, o...)
			return shown{stream, tokens}, err
		}),
	}
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	requests := func(again bool) {
		t.Helper()
		for range 2 {
			select {
			case token := <-tokens:
				if (len(token) > 0) != again {
					t.Errorf("a request shows the token %x", token)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the worker does not join")
			}
		}
	}
	requests(false)
	mu.Lock()
	for _, c := range sockets {
		c.Close()
	}
	mu.Unlock()
	requests(true)
}

// whenTaken is a log that calls a function when a former self is waited for.
type whenTaken func()

func (f whenTaken) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("waiting until it is free")) {
		f()
	}
	return len(b), nil
}

// withoutCheck makes services those of a release that does not know the call Check.
func withoutCheck(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, call grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	if strings.HasSuffix(method, "/Check") {
		return status.Error(codes.Unimplemented, "unknown method Check")
	}
	return call(ctx, method, req, reply, c, opts...)
}

// While a worker waits at one service, the other may end its admission: that is then the reason.
// Services of a release that does not know the call Check have admitted it before it waits.
func TestJoinEndsWithTheOtherService(t *testing.T) {
	s := startServices(t)
	former := s.join
	conn, err := access.Dial(t.Context(), access.TheSwitch(), s.join.Aggregator, access.Security{}, time.Minute, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, _, err := joinAs(t.Context(), pb.NewAggregatorClient(conn), former.request()); err != nil {
		t.Fatal(err)
	}
	s.join.Dial = []grpc.DialOption{grpc.WithUnaryInterceptor(withoutCheck)}
	s.join.Log = slog.New(slog.NewTextHandler(whenTaken(s.server.Stop), nil))
	m, err := Join(t.Context(), s.join)
	if m != nil || err == nil || !strings.HasPrefix(err.Error(), "parameter server: withdrew this worker: ") {
		t.Errorf("%v, %v", m, err)
	}
}

// A worker gets the sums of a step, unless gradients of one were refused. It tells of its frames.
func TestReduceOfAMembership(t *testing.T) {
	var ends []string
	s := startServices(t, func(c *ParameterServerConfig) {
		c.Workers = []uint16{1}
		c.Reduce = func(_ context.Context, step uint64, quiet bool) (Sums, error) {
			ends = append(ends, fmt.Sprint(step, " quiet ", quiet))
			return Sums{Keys: []uint64{7}, Rows: []float32{float32(step)}}, nil
		}
		c.Drop = func(_ context.Context, step uint64, quiet bool) error {
			ends = append(ends, fmt.Sprint(step, " dropped, quiet ", quiet))
			return nil
		}
	})
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	for step := range uint64(2) {
		if got, err := m.Reduce(t.Context(), step, 1, nil, HotFrames{Sent: 4, Answered: 4}); err != nil || !slices.Equal(got.Keys, []uint64{7}) || !slices.Equal(got.Rows, []float32{float32(step)}) {
			t.Errorf("step %d: %v, %v", step, got, err)
		}
	}
	var why *DroppedError
	if _, err := m.Reduce(t.Context(), 2, 1, &DroppedError{Key: 90, KeyKnown: true}, HotFrames{Sent: 5, Answered: 5}); !errors.As(err, &why) || *why != (DroppedError{Key: 90, KeyKnown: true}) {
		t.Errorf("a step of refused gradients: %v", err)
	}
	if want := []string{"0 quiet false", "1 quiet true", "2 dropped, quiet false"}; !slices.Equal(ends, want) {
		t.Errorf("steps ended as %q, want %q", ends, want)
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
		"barrier: switch daemon: withdrew this worker: ":    func(s *services, _ *Membership) { s.endDaemon() },
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
	s.join.Log, s.join.Limit = nil, 0
	m, err := Join(t.Context(), s.join)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Leave()
	conn, err := access.Dial(t.Context(), access.EitherService(), s.join.Server, access.Security{}, time.Minute, nil)
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

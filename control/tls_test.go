// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/libra-ina/libra/aggregator"
	pb "github.com/libra-ina/libra/control/controlpb"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// authority signs certificates for tests.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// Its certificates are valid from from, and for to from now. Clocks of bubbles
	// begin in the year 2000.
	from time.Time
	to   time.Duration
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), to: time.Hour}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key))))
	a.write("ca.pem", "CERTIFICATE", a.cert.Raw)
	return a
}

func (a *authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// files writes the authority and a certificate for the addresses and URIs.
func (a *authority) files(names ...string) (ca, cert, key string) {
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: a.from, NotAfter: time.Now().Add(a.to),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.URIs = append(leaf.URIs, must(url.Parse(n)))
		}
	}
	leafKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	der := must(x509.CreateCertificate(rand.Reader, leaf, a.cert, &leafKey.PublicKey, a.key))
	return filepath.Join(a.dir, "ca.pem"), a.write("cert.pem", "CERTIFICATE", der),
		a.write("key.pem", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(leafKey)))
}

func (a *authority) security(names ...string) Security {
	return must(LoadSecurity(a.files(names...)))
}

// Only peers with a certificate of the authority are accepted.
func TestMutualTLS(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	names := []string{"192.0.2.1", "libra://switch", "libra://server/*", "libra://worker/*", "libra://operator"}
	n := newNetwork(t, ours.security(names...), func(s *grpc.Server) {
		pb.RegisterAggregatorServer(s, NewAggregator(t.Context(), AggregatorConfig{Stripes: 1, Log: quiet}))
	})
	call := func(what string, sec Security, options ...grpc.DialOption) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := pb.NewAggregatorClient(n.dial(t, sec, "192.0.2.2", options...)).RemoveJob(ctx, &pb.RemoveJobRequest{Job: 1})
		if ctx.Err() != nil {
			t.Errorf("%s: no answer", what)
		}
		return err
	}
	wants(t, "a certificate of the authority", call("ours", ours.security(names...)), codes.NotFound, "no job 1")
	impostor := theirs.security(names...)
	impostor.peers = ours.security(names...).peers // it accepts our service
	bare := credentials.NewTLS(&tls.Config{RootCAs: impostor.peers, ServerName: "192.0.2.1"})
	own := ours.security(names...)
	old := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own.identity}, RootCAs: own.peers, ServerName: "192.0.2.1", MaxVersion: tls.VersionTLS12})
	for what, err := range map[string]error{
		"an old version of TLS":              call("old", Security{}, grpc.WithTransportCredentials(old)),
		"plain TCP":                          call("plain", Security{}),
		"no certificate":                     call("none", Security{}, grpc.WithTransportCredentials(bare)),
		"an impostor":                        call("impostor", impostor),
		"a client that expects another CA":   call("other", theirs.security(names...)),
		"a client that expects another name": call("name", ours.security(names...), grpc.WithTransportCredentials(ours.security(names...).client("192.0.2.9", EitherService()))),
	} {
		wants(t, what, err, codes.Unavailable)
	}
}

// A service's certificate must be for its role, and for its job: a worker's is not valid for an
// aggregator, nor another server's for the server of a job, even if it has the address.
func TestServicesShowTheirRole(t *testing.T) {
	a := newAuthority(t)
	for _, c := range []struct {
		peer Peer
		name string
		want bool
	}{
		{TheAggregator(), "libra://switch", true}, {TheAggregator(), "libra://switch/1", false}, {TheAggregator(), "libra://server/5", false}, {TheAggregator(), "libra://worker/5", false}, {TheAggregator(), "other://switch", false},
		{ServerOf(5), "libra://server/5", true}, {ServerOf(5), "libra://server/*", true}, {ServerOf(5), "libra://server/6", false}, {ServerOf(5), "libra://server", false}, {ServerOf(5), "libra://switch", false},
		{EitherService(), "libra://worker/1", true},
	} {
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		s := NewServer(a.security("127.0.0.1", c.name))
		go func() { _ = s.Serve(l) }()
		conn, err := Dial(t.Context(), c.peer, l.Addr().(*net.TCPAddr).AddrPort(), a.security("127.0.0.1", "libra://operator"), 10*time.Second, quiet)
		if (err == nil) != c.want {
			t.Errorf("%s with %s: %v", c.peer.name, c.name, err)
		}
		if err == nil {
			conn.Close()
		} else if !errors.Is(err, ErrTLS) || !contains(err, "the certificate of the "+c.peer.name+" is for ["+c.name+"] (its URI names), not for ") {
			t.Errorf("%s with %s: %v does not name both", c.peer.name, c.name, err)
		}
		s.Stop()
	}
}

// Each call requires its role, of its job; and a worker must have the address that it claims.
func TestRolesAreNeeded(t *testing.T) {
	a := newAuthority(t)
	model := must(aggregator.NewModel(aggregator.Config{}))
	service := NewAggregator(t.Context(), AggregatorConfig{Plane: model, Stripes: 1, Lease: time.Hour, Log: quiet})
	t.Cleanup(service.Close)
	server := NewParameterServer(t.Context(), ParameterServerConfig{
		Job: 5, Workers: []uint16{1, 2}, HotSet: hotSet, Members: &roll{}, Log: quiet,
		Commit: func(context.Context, uint64) error { return nil },
		Stats:  func(context.Context) (*pb.ServerStats, error) { return &pb.ServerStats{}, nil },
	})
	t.Cleanup(server.Close)
	n := newNetwork(t, a.security("192.0.2.1", "libra://switch", "libra://server/5"), func(s *grpc.Server) {
		pb.RegisterAggregatorServer(s, service)
		pb.RegisterParameterServerServer(s, server)
	})
	as := func(names ...string) (pb.AggregatorClient, pb.ParameterServerClient) {
		c := n.dial(t, a.security(names...), "192.0.2.3")
		return pb.NewAggregatorClient(c), pb.NewParameterServerClient(c)
	}
	owner, _ := as("libra://server/5")
	job := must(CreateJob(t.Context(), owner, spec(), 0, quiet))
	other := spec()
	other.Job = 6
	all, _ := as("libra://server/*")
	job6 := must(CreateJob(t.Context(), all, other, 0, quiet))

	// The other roles, with the right key and the right address.
	for _, name := range []string{"libra://server/6", "libra://server", "libra://server/5/5", "libra://worker/5", "libra://switch", "libra://operator", "https://server/5", "libra://server/05"} {
		c, _ := as(name, workerIP.String())
		_, err := c.CreateJob(t.Context(), &pb.JobSpec{Job: 5})
		wants(t, "create with "+name, err, codes.PermissionDenied, "libra://server/5", name)
		hold := must(c.Hold(t.Context(), &pb.HoldRequest{Job: 5, Key: job.Key}))
		_, err = hold.Recv()
		wants(t, "hold with "+name, err, codes.PermissionDenied)
		_, err = c.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5, Key: job.Key})
		wants(t, "remove with "+name, err, codes.PermissionDenied)
		harvest := must(c.Harvest(t.Context()))
		_ = harvest.Send(&pb.HarvestRequest{What: &pb.HarvestRequest_Begin{Begin: &pb.HarvestBegin{Job: 5, Key: job.Key}}})
		_, err = harvest.Recv()
		wants(t, "harvest with "+name, err, codes.PermissionDenied)
	}
	for _, name := range []string{"libra://worker/6", "libra://worker/5/2", "libra://worker/5/*", "libra://worker", "libra://worker/5/1/1", "libra://server/5", "libra://operator"} {
		ac, sc := as(name, workerIP.String())
		_, _, err := joinAs(t.Context(), ac, joinRequest())
		wants(t, "join with "+name, err, codes.PermissionDenied, "libra://worker/5/1")
		join := must(sc.Join(t.Context(), joinRequest()))
		_, err = join.Recv()
		wants(t, "join the server with "+name, err, codes.PermissionDenied, "libra://worker/5/1")
		for what, call := range map[string]func() error{
			"barrier": func() error { _, err := sc.Barrier(t.Context(), &pb.BarrierRequest{Job: 5, Sender: 1}); return err },
			"report":  func() error { _, err := sc.Report(t.Context(), &pb.ReportRequest{Job: 5, Sender: 1}); return err },
			"done":    func() error { _, err := sc.Done(t.Context(), &pb.DoneRequest{Job: 5, Sender: 1}); return err },
			"reduce": func() error {
				stream := must(sc.Reduce(t.Context(), &pb.ReduceRequest{Job: 5, Sender: 1}))
				_, err := stream.Recv()
				return err
			},
			"leave": func() error { _, err := sc.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1}); return err },
		} {
			wants(t, what+" with "+name, call(), codes.PermissionDenied, "libra://worker/5/1")
		}
	}
	for _, name := range []string{"libra://worker/5", "libra://worker/5/1", "libra://worker/*", "libra://worker/*/1"} {
		ac, sc := as(name, "192.0.2.77")
		_, _, err := joinAs(t.Context(), ac, joinRequest())
		wants(t, "claimed address", err, codes.PermissionDenied, workerIP.String(), "192.0.2.77")
		join := must(sc.Join(t.Context(), joinRequest()))
		_, err = join.Recv()
		wants(t, "claimed address", err, codes.PermissionDenied, workerIP.String(), "192.0.2.77")

		ac, sc = as(name, "192.0.2.77", workerIP.String())
		_, admitted, err := joinAs(t.Context(), ac, joinRequest())
		if err != nil {
			t.Fatalf("join with %s: %v", name, err)
		}
		join = must(sc.Join(t.Context(), joinRequest()))
		member, err := join.Recv()
		if err != nil {
			t.Fatalf("join the server with %s: %v", name, err)
		}
		must(ac.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1, Token: admitted.Token}))
		must(sc.Leave(t.Context(), &pb.LeaveRequest{Job: 5, Sender: 1, Token: member.Token}))
	}

	// Callers only get statistics of their own jobs.
	for name, want := range map[string][]uint32{
		"libra://switch": {5, 6}, "libra://operator": {5, 6}, "libra://server/*": {5, 6}, "libra://server/6": {6}, "libra://worker/5": {5},
		"libra://worker/6/3": {6}, "libra://worker/7": nil, "libra://other": nil,
	} {
		ac, sc := as(name)
		var got []uint32
		for _, j := range must(ac.Stats(t.Context(), &pb.StatsRequest{})).Jobs {
			got = append(got, j.Job)
		}
		if len(got) != len(want) || len(got) > 0 && (got[0] != want[0] || got[len(got)-1] != want[len(want)-1]) {
			t.Errorf("%s sees the jobs %v, want %v", name, got, want)
		}
		_, err := sc.Stats(t.Context(), &pb.StatsRequest{})
		if allowed := len(want) > 0 && want[0] == 5; allowed != (err == nil) {
			t.Errorf("%s asks the server of job 5: %v", name, err)
		}
	}

	// Without the key, an operator can remove jobs.
	_, err := owner.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5})
	wants(t, "a server without the key", err, codes.PermissionDenied, "libra://operator")
	operator, _ := as("libra://operator")
	must(operator.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}))
	if err := job6.Remove(t.Context()); err != nil {
		t.Error(err)
	}
}

// A peer that disagrees on TLS gets that error, not that there is no answer.
func TestDialNamesTLSMismatch(t *testing.T) {
	sec, stranger := newAuthority(t).security("127.0.0.1", "libra://switch"), newAuthority(t).security("127.0.0.1", "libra://switch")
	// Its certificate is not accepted, which it learns after its own handshake.
	mixed := stranger
	mixed.peers = sec.peers
	for name, c := range map[string]struct{ server, client Security }{
		"client without":               {sec, Security{}},
		"server without":               {Security{}, sec},
		"another authority":            {sec, stranger},
		"certificate of another, only": {sec, mixed},
		"service's of another, only":   {mixed, sec},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := must(net.Listen("tcp", "127.0.0.1:0"))
			s := NewServer(c.server)
			go func() { _ = s.Serve(l) }()
			defer s.Stop()
			_, err := Dial(t.Context(), TheAggregator(), l.Addr().(*net.TCPAddr).AddrPort(), c.client, 2*time.Second, quiet)
			if !errors.Is(err, ErrTLS) || !contains(err, "aggregator at 127.0.0.1") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestLoadSecurityNamesTheFile(t *testing.T) {
	ca, cert, key := newAuthority(t).files("127.0.0.1")
	for _, c := range []struct{ ca, cert, key, want string }{
		{"", cert, key, "needs an authority"},
		{ca, "", key, "needs an authority"},
		{ca, cert, "", "needs an authority, a certificate and a key; got ca " + strconv.Quote(ca) + ", cert " + strconv.Quote(cert) + `, key ""`},
		{ca, "", "", "needs an authority"},
		{"", cert, "", "needs an authority"},
		{"", "", key, "needs an authority"},
		{"no.pem", cert, key, "TLS authority: open no.pem: "},
		{key, cert, key, "TLS authority " + key + " holds no PEM certificate"},
		{ca, ca, key, "TLS certificate " + ca + " with key " + key + ": "},
	} {
		if _, err := LoadSecurity(c.ca, c.cert, c.key); err == nil || !contains(err, c.want) {
			t.Errorf("LoadSecurity(%q, %q, %q) = %v", c.ca, c.cert, c.key, err)
		}
	}
	if s, err := LoadSecurity("", "", ""); err != nil || s.on() {
		t.Errorf("without files: %v, %v", s.on(), err)
	}
	if s, err := LoadSecurity(ca, cert, key); err != nil || !s.on() {
		t.Errorf("with all files: %v, %v", s.on(), err)
	}
}

// A certificate that no other side would accept is refused locally, with its file: peers only see
// that a handshake failed.
func TestLoadSecurityChecksItsOwnCertificate(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	ca, _, _ := ours.files()
	_, foreign, foreignKey := theirs.files()
	for name, c := range map[string]struct {
		from time.Time
		to   time.Duration
		want string
	}{
		"expired":       {time.Time{}, -time.Hour, "is after"},
		"not yet valid": {time.Now().Add(time.Hour), 2 * time.Hour, "is before"},
	} {
		a := newAuthority(t)
		a.from, a.to = c.from, c.to
		ca, cert, key := a.files("127.0.0.1")
		if _, err := LoadSecurity(ca, cert, key); !contains(err, "TLS certificate "+cert+", with the authority "+ca+": ", c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := LoadSecurity(ca, foreign, foreignKey); !contains(err, "TLS certificate "+foreign+", with the authority "+ca+": ", "unknown authority") {
		t.Errorf("of another authority: %v", err)
	}
}

// The file of a certificate may hold those between it and the authority.
func TestLoadSecurityTakesAChain(t *testing.T) {
	root, between := newAuthority(t), newAuthority(t)
	ca := filepath.Join(root.dir, "ca.pem")
	_, cert, key := between.files("127.0.0.1")
	if _, err := LoadSecurity(ca, cert, key); !contains(err, "unknown authority") {
		t.Errorf("without what is between: %v", err)
	}
	der := must(x509.CreateCertificate(rand.Reader, between.cert, root.cert, &between.key.PublicKey, root.key))
	chain := append(must(os.ReadFile(cert)), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	if err := os.WriteFile(cert, chain, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSecurity(ca, cert, key); err != nil {
		t.Error(err)
	}
}

// Over plain TCP an operator is a caller on the switch's own host, or the daemon itself.
func TestOperatorsWithoutTLS(t *testing.T) {
	for from, want := range map[string]bool{"192.0.2.1": true, "127.0.0.1": true, "::1": true, "::ffff:192.0.2.1": true, "192.0.2.2": false, "192.0.2.129": false} {
		l := startAggregator(t)
		l.create(t, spec())
		_, err := pb.NewAggregatorClient(l.dial(t, Security{}, from)).RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5})
		if want && err != nil {
			t.Errorf("from %s: %v", from, err)
		}
		if !want {
			wants(t, "from "+from, err, codes.PermissionDenied, "own host", from)
		}
	}
	l := startAggregator(t)
	l.create(t, spec())
	if _, err := l.service.RemoveJob(t.Context(), &pb.RemoveJobRequest{Job: 5}); err != nil {
		t.Errorf("in the same process: %v", err)
	}
	if ap := addrPort(nil); ap != (netip.AddrPort{}) {
		t.Error(ap)
	}
}

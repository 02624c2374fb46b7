// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "github.com/libra-ina/libra/control/controlpb"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

// Only peers with a certificate of the authority are accepted.
func TestMutualTLS(t *testing.T) {
	ours, theirs := grpctest.NewAuthority(t), grpctest.NewAuthority(t)
	names := []string{"192.0.2.1", "libra://switch", "libra://server/*", "libra://worker/*", "libra://operator"}
	n := newNetwork(t, security(ours, names...), func(s *grpc.Server) { pb.RegisterAggregatorServer(s, empty{}) })
	call := func(what string, sec Security, options ...grpc.DialOption) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := pb.NewAggregatorClient(n.Dial(t, "192.0.2.2", append(sec.DialOptions("192.0.2.1", EitherService()), options...)...)).RemoveJob(ctx, &pb.RemoveJobRequest{Job: 1})
		if ctx.Err() != nil {
			t.Errorf("%s: no answer", what)
		}
		return err
	}
	if err := call("ours", security(ours, names...)); status.Code(err) != codes.NotFound || !contains(err, "no job 1") {
		t.Errorf("a certificate of the authority: %v", err)
	}
	impostor := security(theirs, names...)
	impostor.peers = security(ours, names...).peers // it accepts our service
	bare := credentials.NewTLS(&tls.Config{RootCAs: impostor.peers, ServerName: "192.0.2.1"})
	own := security(ours, names...)
	old := credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{own.identity}, RootCAs: own.peers, ServerName: "192.0.2.1", MaxVersion: tls.VersionTLS12})
	for what, err := range map[string]error{
		"an old version of TLS":              call("old", Security{}, grpc.WithTransportCredentials(old)),
		"plain TCP":                          call("plain", Security{}),
		"no certificate":                     call("none", Security{}, grpc.WithTransportCredentials(bare)),
		"an impostor":                        call("impostor", impostor),
		"a client that expects another CA":   call("other", security(theirs, names...)),
		"a client that expects another name": call("name", security(ours, names...), grpc.WithTransportCredentials(security(ours, names...).client("192.0.2.9", EitherService()))),
	} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A service's certificate must be for its role, and for its job: a worker's is not valid for an
// aggregator, nor another server's for the server of a job, even if it has the address.
func TestServicesShowTheirRole(t *testing.T) {
	a := grpctest.NewAuthority(t)
	for _, c := range []struct {
		peer Peer
		name string
		want bool
	}{
		{TheSwitch(), "libra://switch", true}, {TheSwitch(), "libra://switch/1", false}, {TheSwitch(), "libra://server/5", false}, {TheSwitch(), "libra://worker/5", false}, {TheSwitch(), "other://switch", false},
		{ServerOf(5), "libra://server/5", true}, {ServerOf(5), "libra://server/*", true}, {ServerOf(5), "libra://server/6", false}, {ServerOf(5), "libra://server", false}, {ServerOf(5), "libra://switch", false},
		{EitherService(), "libra://worker/1", true},
	} {
		l := must(net.Listen("tcp", "127.0.0.1:0"))
		s := NewServer(security(a, "127.0.0.1", c.name))
		go func() { _ = s.Serve(l) }()
		conn, err := Dial(t.Context(), c.peer, l.Addr().(*net.TCPAddr).AddrPort(), security(a, "127.0.0.1", "libra://operator"), 10*time.Second, quiet)
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

// A peer that disagrees on TLS gets that error, not that there is no answer.
func TestDialNamesTLSMismatch(t *testing.T) {
	sec, stranger := security(grpctest.NewAuthority(t), "127.0.0.1", "libra://switch"), security(grpctest.NewAuthority(t), "127.0.0.1", "libra://switch")
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
			_, err := Dial(t.Context(), TheSwitch(), l.Addr().(*net.TCPAddr).AddrPort(), c.client, 2*time.Second, quiet)
			if !errors.Is(err, ErrTLS) || !contains(err, "switch daemon at 127.0.0.1") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestLoadSecurityNamesTheFile(t *testing.T) {
	ca, cert, key := grpctest.NewAuthority(t).Files("127.0.0.1")
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
	ours, theirs := grpctest.NewAuthority(t), grpctest.NewAuthority(t)
	ca, _, _ := ours.Files()
	_, foreign, foreignKey := theirs.Files()
	for name, c := range map[string]struct {
		from time.Time
		to   time.Duration
		want string
	}{
		"expired":       {time.Time{}, -time.Hour, "is after"},
		"not yet valid": {time.Now().Add(time.Hour), 2 * time.Hour, "is before"},
	} {
		a := grpctest.NewAuthority(t)
		a.From, a.To = c.from, c.to
		ca, cert, key := a.Files("127.0.0.1")
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
	root, between := grpctest.NewAuthority(t), grpctest.NewAuthority(t)
	ca := filepath.Join(root.Dir, "ca.pem")
	_, cert, key := between.Files("127.0.0.1")
	if _, err := LoadSecurity(ca, cert, key); !contains(err, "unknown authority") {
		t.Errorf("without what is between: %v", err)
	}
	der := must(x509.CreateCertificate(rand.Reader, between.Cert, root.Cert, &between.Key.PublicKey, root.Key))
	chain := append(must(os.ReadFile(cert)), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	if err := os.WriteFile(cert, chain, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSecurity(ca, cert, key); err != nil {
		t.Error(err)
	}
}

package control

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/libra-ina/libra/control/controlpb"
)

func contains(err error, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			return false
		}
	}
	return true
}

// authority writes a fresh CA and a certificate for 127.0.0.1 that it signed.
func authority(t *testing.T) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	caKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER := must(x509.CreateCertificate(rand.Reader, template, template, &caKey.PublicKey, caKey))
	leafKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	leafDER := must(x509.CreateCertificate(rand.Reader, leaf, must(x509.ParseCertificate(caDER)), &leafKey.PublicKey, caKey))
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("ca.pem", "CERTIFICATE", caDER), write("cert.pem", "CERTIFICATE", leafDER),
		write("key.pem", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(leafKey)))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestMutualTLS(t *testing.T) {
	sec := must(LoadSecurity(authority(t)))
	ctx := t.Context()
	conn := serve(t, sec, func(s *grpc.Server) {
		pb.RegisterAggregatorServer(s, NewAggregator(ctx, AggregatorConfig{Log: quiet}))
	})
	if _, err := pb.NewAggregatorClient(conn).RemoveJob(ctx, &pb.RemoveJobRequest{Job: 1}); err == nil || !contains(err, "no job 1") {
		t.Errorf("the service answered %v", err)
	}
	stranger := must(LoadSecurity(authority(t)))
	for name, other := range map[string]Security{"another authority": stranger, "plain TCP": {}} {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		c, err := grpc.NewClient(conn.Target(), grpc.WithTransportCredentials(other.client("127.0.0.1")))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pb.NewAggregatorClient(c).RemoveJob(limited, &pb.RemoveJobRequest{Job: 1}); err == nil || contains(err, "no job 1") {
			t.Errorf("with %s the service answered %v", name, err)
		}
		c.Close()
		cancel()
	}
}

// Whoever disagrees on TLS is told so, not that nobody answers.
func TestDialNamesTLSMismatch(t *testing.T) {
	sec, stranger := must(LoadSecurity(authority(t))), must(LoadSecurity(authority(t)))
	for name, c := range map[string]struct{ server, client Security }{
		"client without":    {sec, Security{}},
		"server without":    {Security{}, sec},
		"another authority": {sec, stranger},
	} {
		t.Run(name, func(t *testing.T) {
			l := must(net.Listen("tcp", "127.0.0.1:0"))
			s := NewServer(c.server)
			go func() { _ = s.Serve(l) }()
			defer s.Stop()
			_, err := Dial(t.Context(), "aggregator", l.Addr().(*net.TCPAddr).AddrPort(), c.client, 2*time.Second, quiet)
			if !errors.Is(err, ErrTLS) || !contains(err, "aggregator at 127.0.0.1") {
				t.Errorf("got %v", err)
			}
		})
	}
	// A client whose certificate the server does not accept hears of it after
	// its own handshake.
	mixed := stranger
	mixed.peers = sec.peers
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	s := NewServer(sec)
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	if _, err := Dial(t.Context(), "aggregator", l.Addr().(*net.TCPAddr).AddrPort(), mixed, 2*time.Second, quiet); !errors.Is(err, ErrTLS) {
		t.Errorf("certificate of another authority: %v", err)
	}
}

func TestLoadSecurityNamesTheFile(t *testing.T) {
	ca, cert, key := authority(t)
	for _, c := range []struct{ ca, cert, key, want string }{
		{"", cert, key, "needs an authority"},
		{"no.pem", cert, key, "no.pem"},
		{key, cert, key, "holds no PEM certificate"},
		{ca, ca, key, "private key"},
	} {
		if _, err := LoadSecurity(c.ca, c.cert, c.key); err == nil || !contains(err, c.want) {
			t.Errorf("LoadSecurity(%q, %q, %q) = %v", c.ca, c.cert, c.key, err)
		}
	}
}

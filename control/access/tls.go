// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Security protects control connections. The zero value means plain TCP, for a network where all
// hosts are trusted.
type Security struct {
	identity tls.Certificate
	peers    *x509.CertPool
}

// LoadSecurity reads PEM files for mutual TLS: both sides of a connection must present a
// certificate that the authority ca has signed. It therefore refuses a certificate of another
// authority, or one that is not valid now. Three empty names mean plain TCP.
func LoadSecurity(ca, cert, key string) (Security, error) {
	if ca == "" && cert == "" && key == "" {
		return Security{}, nil
	}
	if ca == "" || cert == "" || key == "" {
		return Security{}, fmt.Errorf("mutual TLS needs an authority, a certificate and a key; got ca %q, cert %q, key %q",
			ca, cert, key)
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return Security{}, fmt.Errorf("TLS authority: %w", err)
	}
	s := Security{peers: x509.NewCertPool()}
	if !s.peers.AppendCertsFromPEM(pem) {
		return Security{}, fmt.Errorf("TLS authority %s holds no PEM certificate", ca)
	}
	if s.identity, err = tls.LoadX509KeyPair(cert, key); err != nil {
		return Security{}, fmt.Errorf("TLS certificate %s with key %s: %w", cert, key, err)
	}
	if err := s.acceptable(); err != nil {
		return Security{}, fmt.Errorf("TLS certificate %s, with the authority %s: %w", cert, ca, err)
	}
	return s, nil
}

// acceptable returns why a peer that trusts the same authority would refuse the identity.
func (s Security) acceptable() error {
	between := x509.NewCertPool()
	for _, der := range s.identity.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err := s.identity.Leaf.Verify(x509.VerifyOptions{Roots: s.peers, Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

func (s Security) on() bool { return s.peers != nil }

// ErrTLS means that the two sides of a control connection do not agree on TLS.
var ErrTLS = errors.New("TLS mismatch")

// mismatch explains the error of a connection as a disagreement on TLS, or returns nil if that is
// not the reason. gRPC gives nothing but the text. A peer that ends connections at once has
// probably refused our certificate, or expected one; but it could also be about to end.
func (s Security) mismatch(err error) (_ error, certain bool) {
	reason := status.Convert(err).Message()
	_, alert, found := strings.Cut(reason, "tls: ")
	ended := false
	for _, text := range []string{"server preface", "connection reset by peer", "broken pipe"} {
		ended = ended || strings.Contains(reason, text)
	}
	// If a peer accepts a connection and is silent, as a server is that waits for its aggregator,
	// this side gives up.
	ended = ended && !strings.Contains(reason, net.ErrClosed.Error())
	switch {
	case s.on() && strings.Contains(reason, "first record does not look like a TLS handshake"):
		return fmt.Errorf("%w: this side uses TLS and the other plain TCP: give both the same tls section, or neither",
			ErrTLS), true
	case s.on() && found:
		return fmt.Errorf("%w: %s: compare the authority, and the names and dates of the certificates, on both sides",
			ErrTLS, strings.TrimRight(alert, "\"")), true
	case s.on() && ended:
		return fmt.Errorf("%w: it ended the connection after the handshake, so it does not accept this side's certificate: was that signed by the authority that the other side trusts?", ErrTLS), false
	case ended:
		return fmt.Errorf("%w: it accepts connections but closes them at once, as a service with TLS does, and this side uses plain TCP: give both the same tls section, or neither, and compare the address", ErrTLS), false
	}
	return nil, false
}

func (s Security) server() credentials.TransportCredentials {
	if !s.on() {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(s.ServerTLS())
}

// ServerTLS returns the settings of a service, nil for plain TCP.
func (s Security) ServerTLS() *tls.Config {
	if !s.on() {
		return nil
	}
	return &tls.Config{
		Certificates: []tls.Certificate{s.identity},
		ClientCAs:    s.peers,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	}
}

// client returns the credentials of a client. The service's certificate must be valid for its name
// and for the peer's role.
func (s Security) client(name string, peer Peer) credentials.TransportCredentials {
	if !s.on() {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(s.ClientTLS(name, peer))
}

// ClientTLS returns the settings of a client, nil for plain TCP. The service's certificate must be
// valid for its name and for the peer's role.
func (s Security) ClientTLS(name string, peer Peer) *tls.Config {
	if !s.on() {
		return nil
	}
	return &tls.Config{
		Certificates: []tls.Certificate{s.identity},
		RootCAs:      s.peers,
		ServerName:   name,
		MinVersion:   tls.VersionTLS13,
		VerifyConnection: func(state tls.ConnectionState) error {
			cert := Caller{names: state.PeerCertificates[0].URIs}
			if peer.role == "" || cert.is(peer.role, peer.job...) {
				return nil
			}
			return fmt.Errorf("tls: the certificate of the %s is for %v (its URI names), not for %s", peer.name, cert.names,
				uri(peer.role, peer.job))
		},
	}
}

package control

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// Security protects control connections. The zero value means plain TCP, for
// a network where everybody may speak to everybody.
type Security struct {
	identity tls.Certificate
	peers    *x509.CertPool
}

// LoadSecurity reads PEM files for mutual TLS: both sides of a connection must
// present a certificate that the authority ca has signed. Three empty names
// mean plain TCP.
func LoadSecurity(ca, cert, key string) (Security, error) {
	if ca == "" && cert == "" && key == "" {
		return Security{}, nil
	}
	if ca == "" || cert == "" || key == "" {
		return Security{}, fmt.Errorf("mutual TLS needs an authority, a certificate and a key; got ca %q, cert %q, key %q", ca, cert, key)
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
	return s, nil
}

func (s Security) server() credentials.TransportCredentials {
	if s.peers == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{s.identity},
		ClientCAs:    s.peers,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	})
}

// client's name is what the server's certificate must be valid for.
func (s Security) client(name string) credentials.TransportCredentials {
	if s.peers == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{s.identity},
		RootCAs:      s.peers,
		ServerName:   name,
		MinVersion:   tls.VersionTLS13,
	})
}

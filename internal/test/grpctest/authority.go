// SPDX-License-Identifier: Apache-2.0

package grpctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Authority signs certificates for tests.
type Authority struct {
	// Dir holds the files.
	Dir string
	// Cert and Key are its own.
	Cert *x509.Certificate
	Key  *ecdsa.PrivateKey
	// Its certificates are valid from From, and for To from now. Clocks of bubbles
	// begin in the year 2000.
	From time.Time
	To   time.Duration

	t *testing.T
}

// NewAuthority makes an authority, and its file ca.pem.
func NewAuthority(t *testing.T) *Authority {
	t.Helper()
	a := &Authority{t: t, Dir: t.TempDir(), Key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), To: time.Hour}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.Cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, &a.Key.PublicKey,
		a.Key))))
	a.write("ca.pem", "CERTIFICATE", a.Cert.Raw)
	return a
}

func (a *Authority) write(name, kind string, der []byte) string {
	path := filepath.Join(a.Dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// Files writes the authority and a certificate for the addresses and URIs.
func (a *Authority) Files(names ...string) (ca, cert, key string) {
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: a.From, NotAfter: time.Now().Add(a.To),
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
	der := must(x509.CreateCertificate(rand.Reader, leaf, a.Cert, &leafKey.PublicKey, a.Key))
	return filepath.Join(a.Dir, "ca.pem"), a.write("cert.pem", "CERTIFICATE", der),
		a.write("key.pem", "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(leafKey)))
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
)

// authority signs the certificates of a cluster's hosts.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir(), cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	a.key = a.sign("ca", a.cert)
	return a
}

// sign writes a certificate and its key, which it returns. The authority's is self-signed.
func (a *authority) sign(name string, cert *x509.Certificate) *ecdsa.PrivateKey {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.key == nil {
		a.key = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for kind, der := range map[string][]byte{"CERTIFICATE": der, "PRIVATE KEY": secret} {
		path := filepath.Join(a.dir, name+" "+kind)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return key
}

// file writes the cluster file of a host with a certificate for a role, or several with spaces
// between them, and an address, valid for a duration.
func (a *authority) file(c *cluster.Config, name, role string, at netip.Addr, lasts time.Duration) string {
	a.t.Helper()
	var uris []*url.URL
	for role := range strings.FieldsSeq(role) {
		uri, err := url.Parse(role)
		if err != nil {
			a.t.Fatal(err)
		}
		uris = append(uris, uri)
	}
	a.sign(name, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(lasts), URIs: uris, IPAddresses: []net.IP{at.AsSlice()},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	of := func(name, kind string) string { return filepath.Join(a.dir, name+" "+kind) }
	theirs := *c
	theirs.TLS = cluster.TLS{CA: of("ca", "CERTIFICATE"), Cert: of(name, "CERTIFICATE"), Key: of(name, "PRIVATE KEY")}
	path := filepath.Join(a.dir, name+".yaml")
	if err := theirs.Write(path); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// With mutual TLS a host without the right certificate is refused with the reason; hosts with
// theirs train.
func TestClusterWithCertificates(t *testing.T) {
	t.Parallel()
	bed := newKillBed(t, cluster.BackendUDP)
	c, want := bed.config, bed.reference(t)
	a := newAuthority(t)
	plain, worker := bed.path, c.Workers[0].Address
	first := a.file(c, "worker 1", "libra://worker/3/1", worker, time.Hour)
	second := a.file(c, "worker 2", "libra://worker/3", c.Workers[1].Address, time.Hour)
	server := a.file(c, "server", "libra://server/3", c.Server.Address, time.Hour)
	bed.path = a.file(c, "switch", "libra://switch", c.Switch.Address, time.Hour)
	bed.runSwitch(t)

	for role, says := range map[string]string{"libra://worker/3": "libra://server/3", "libra://server/4": "libra://server/3"} {
		_, stderr, code := output(t, "ps", "--config", a.file(c, "no server", role, c.Server.Address, time.Hour))
		if code != exitFailure || !strings.Contains(stderr, says) {
			t.Errorf("a server with a certificate for %s: exit code %d\n%s", role, code, stderr)
		}
	}
	ps := bed.runWith(t, theServer, server, "ps")
	waitTraining(t, ps)
	for name, refused := range map[string]struct{ file, says string }{
		"of a server":                         {a.file(c, "role", "libra://server/3", worker, time.Hour), "libra://worker/3/1"},
		"of another worker":                   {a.file(c, "number", "libra://worker/3/2", worker, time.Hour), "libra://worker/3/1"},
		"of another host":                     {a.file(c, "address", "libra://worker/3/1", c.Workers[1].Address, time.Hour), "address " + worker.String() + " is not in the certificate"},
		"expired":                             {a.file(c, "expired", "libra://worker/3/1", worker, -time.Minute), "expired"},
		"of an authority that is not trusted": {newAuthority(t).file(c, "stranger", "libra://worker/3/1", worker, time.Hour), "TLS mismatch"},
		"none":                                {plain, "TLS mismatch"},
	} {
		_, stderr, code := output(t, "worker", "--id", "1", "--config", refused.file)
		if code != exitFailure || !strings.Contains(stderr, refused.says) {
			t.Errorf("a worker's certificate, %s: exit code %d, want %q\n%s", name, code, refused.says, stderr)
		}
	}
	workers := []*child{bed.runWith(t, firstWorker, first, "worker", "--id", "1"), bed.runWith(t, firstWorker+1, second, "worker", "--id", "2")}
	if got := weightsOf(t, ps, workers); got != want {
		t.Errorf("weights %s, the reference's %s", got, want)
	}
}

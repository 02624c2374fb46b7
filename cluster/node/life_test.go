// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/train"
)

// held is what this process holds: goroutines, and files of each kind.
func held(t *testing.T) (goroutines int, files map[string]int) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]int{}
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil {
			kind, _, _ := strings.Cut(to, ":")
			files[kind]++
		}
	}
	return runtime.NumGoroutine(), files
}

// However a run ends, its processes leave no goroutine, socket or file behind.
func TestProcessesLeaveNothing(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd"); err != nil {
		t.Skip("the system does not tell which files are open")
	}
	c := newCluster(t, 2)
	rows := filepath.Join(t.TempDir(), "train.libfm")
	if err := os.WriteFile(rows, []byte(strings.Repeat("0 1:1 2:1\n1 3:1 4:1\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Data = cluster.Data{Train: rows}
	buildHotSet(t, c)
	c.Capture = filepath.Join(t.TempDir(), "captures")
	run := func(step func(id uint16, p train.Progress, endWorker, endServer func())) outcome {
		t.Helper()
		stop := runSwitch(t, c, testLog(t))
		defer stop()
		return trainCluster(t.Context(), t, c, hooks{step: step})
	}
	if err := run(nil).err(); err != nil {
		t.Fatal(err)
	}
	before, filesBefore := held(t)
	for name, step := range map[string]func(uint16, train.Progress, func(), func()){
		"finished": nil,
		"server ended": func(_ uint16, p train.Progress, _, endServer func()) {
			if p.Steps == 2 {
				endServer()
			}
		},
		"worker ended": func(id uint16, p train.Progress, endWorker, _ func()) {
			if id == 2 && p.Steps == 2 {
				endWorker()
			}
		},
	} {
		if err := os.Remove(c.Server.Checkpoint); err != nil {
			t.Fatal(err)
		}
		if out := run(step); (out.err() == nil) != (step == nil) {
			t.Errorf("%s: %v", name, out.err())
		}
		for deadline := time.Now().Add(eventLimit); ; time.Sleep(10 * time.Millisecond) {
			after, files := held(t)
			more := after > before
			for kind, n := range files {
				more = more || n > filesBefore[kind]
			}
			if !more {
				break
			}
			if time.Now().After(deadline) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%s: %d goroutines and files %v, before %d and %v\n%s", name, after, files, before, filesBefore, stacks[:runtime.Stack(stacks, true)])
			}
		}
	}
}

// proxy passes TCP connections on until they are cut.
type proxy struct {
	listener net.Listener
	to       netip.AddrPort
	mu       sync.Mutex
	open     []net.Conn
	cuts     int
}

func newProxy(t *testing.T, at netip.Addr, to netip.AddrPort) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, to: to}
	t.Cleanup(func() { l.Close(); p.cut() })
	go func() {
		for {
			ours, err := l.Accept()
			if err != nil {
				return
			}
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: at.AsSlice()}} // services look at who calls
			theirs, err := dialer.Dial("tcp", to.String())
			if err != nil {
				ours.Close()
				continue
			}
			p.mu.Lock()
			p.open = append(p.open, ours, theirs)
			p.mu.Unlock()
			for _, pair := range [][2]net.Conn{{ours, theirs}, {theirs, ours}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					pair[0].Close()
				}()
			}
		}
	}()
	return p
}

// cut breaks the connections that there are.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.open {
		c.Close()
	}
	p.cuts += len(p.open) / 2
	p.open = nil
}

func (p *proxy) address() netip.AddrPort {
	return p.listener.Addr().(*net.TCPAddr).AddrPort()
}

// When the control connections of a worker break, it resumes its admissions, and
// training goes on as if nothing had happened.
func TestWorkerSurvivesBrokenConnections(t *testing.T) {
	c := newCluster(t, 2)
	startSwitch(t, c)
	toServer := newProxy(t, c.Workers[0].Address, c.Server.Control)
	toSwitch := newProxy(t, c.Workers[0].Address, c.Switch.Control)
	out := trainCluster(t.Context(), t, c, hooks{
		change: func(id uint16, theirs *cluster.Config) {
			if id == 1 {
				theirs.Server.Control, theirs.Switch.Control = toServer.address(), toSwitch.address()
			}
		},
		step: func(id uint16, p train.Progress, _, _ func()) {
			if id == 1 && p.Steps%4 == 1 {
				toServer.cut()
				toSwitch.cut()
			}
		},
	})
	if err := out.err(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.server.WeightsSHA256, hash(reference(t, c)); got != want {
		t.Errorf("weights %s, the reference's %s", got, want)
	}
	if toServer.cuts == 0 || toSwitch.cuts == 0 {
		t.Errorf("%d and %d connections were cut", toServer.cuts, toSwitch.cuts)
	}
}

// When the switch or the server ends, the other processes end with errors that name it and what it
// ended: the switch, if workers keep no logs, as those of an aggregator without marks.
func TestEndOfAServiceIsTold(t *testing.T) {
	t.Parallel()
	for _, sync := range []bool{true, false} {
		c := newCluster(t, 2)
		c.Model.Epochs, c.Job.Sync, c.Job.ReplayMiB = 1000, sync, 0
		if !sync {
			c.Job.Harvest = 5 * time.Millisecond
		}
		for _, which := range []string{"switch", "server"} {
			stop := runSwitch(t, c, testLog(t))
			var start time.Time // of the end
			var other, ended atomic.Bool
			out := trainCluster(t.Context(), t, c, hooks{step: func(id uint16, p train.Progress, _, endServer func()) {
				if id != 1 {
					other.Store(true)
				}
				switch {
				case id != 1 || p.Steps < 5 || !other.Load(): // one that is yet to join would wait for the service
				case !ended.CompareAndSwap(false, true):
				case which == "server":
					start = time.Now()
					endServer()
				default:
					start = time.Now()
					go stop() // which waits for the processes to hear of it
				}
			}})
			stop()
			names := "parameter server: "
			if which == "switch" {
				if err := out.serverErr; err == nil || !strings.Contains(err.Error(), "lost job 5: switch daemon: ") {
					t.Errorf("sync %v: the switch ends, and the server with %v", sync, err)
				}
				names = ": " // whichever of the two is heard first
			} else if !errors.Is(out.serverErr, context.Canceled) {
				t.Errorf("the server: %v", out.serverErr)
			}
			for i, err := range out.errs {
				if err == nil || !strings.Contains(err.Error(), names) || strings.Contains(err.Error(), "rpc error") || strings.Contains(err.Error(), "silent") {
					t.Errorf("sync %v: the %s ends, and worker %d with %v", sync, which, i+1, err)
				}
				if err != nil && !strings.HasPrefix(err.Error(), "parameter server: ") && !strings.HasPrefix(err.Error(), "switch daemon: ") {
					t.Errorf("sync %v: the %s ends, and worker %d does not name the service: %v", sync, which, i+1, err)
				}
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it takes %v", took)
			}
			_ = os.Remove(c.Server.Checkpoint)
		}
	}
}

// certificates writes an authority and a certificate of it for every role and the
// addresses.
func certificates(t *testing.T, addresses ...netip.Addr) cluster.TLS {
	t.Helper()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, a := range addresses {
		leaf.IPAddresses = append(leaf.IPAddresses, a.AsSlice())
	}
	for _, role := range []string{"libra://switch", "libra://server/*", "libra://worker/*", "libra://operator"} {
		u, err := url.Parse(role)
		if err != nil {
			t.Fatal(err)
		}
		leaf.URIs = append(leaf.URIs, u)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.TLS{
		CA: write("ca.pem", "CERTIFICATE", caDER), Cert: write("cert.pem", "CERTIFICATE", der), Key: write("key.pem", "EC PRIVATE KEY", keyDER),
	}
}

// All processes of a cluster speak TLS if the configuration has certificates.
func TestTrainingWithCertificates(t *testing.T) {
	c := newCluster(t, 1)
	c.TLS = certificates(t, c.Switch.Address, c.Server.Address, c.Workers[0].Address)
	startSwitch(t, c)
	if got, want := mustTrain(t, c).server.WeightsSHA256, hash(reference(t, c)); got != want {
		t.Errorf("weights %s, the reference's %s", got, want)
	}
	// And a worker that does not is kept out.
	out := trainCluster(t.Context(), t, c, hooks{change: func(_ uint16, theirs *cluster.Config) { theirs.TLS = certificates(t, c.Switch.Address) }})
	if err := out.errs[0]; err == nil || !strings.Contains(err.Error(), "TLS mismatch") {
		t.Errorf("a worker with certificates of another authority: %v", err)
	}
}

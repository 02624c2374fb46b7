// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/libra-ina/libra/cluster"
	"github.com/libra-ina/libra/link"
	"github.com/libra-ina/libra/packer"
)

// What a process cannot begin with is an error at its start that names it, though the
// other processes are not there.
func TestStartErrors(t *testing.T) {
	empty, err := packer.NewHotSet(4, nil, nil, packer.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	emptyFile := filepath.Join(t.TempDir(), "empty.libra")
	if err := packer.SaveHotSet(emptyFile, empty); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe") // to which none writes
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(*cluster.Config)
		id     uint16            // of the worker; 0: 1
		ps     bool              // the server fails too
		want   []string          // in the worker's error, or in both
		sw     map[string]string // in the switch's error
	}{
		"worker":           {id: 9, want: []string{"9"}},
		"model":            {change: func(c *cluster.Config) { c.Model.Kind = "mlp" }, ps: true, want: []string{"mlp"}},
		"training file":    {change: func(c *cluster.Config) { c.Data = cluster.Data{Train: "no/such/train.libfm"} }, want: []string{"no/such/train.libfm"}},
		"absent hot set":   {change: func(c *cluster.Config) { c.Job.HotSet = "no/such/hot.libra" }, ps: true, want: []string{"no/such/hot.libra"}},
		"data in a pipe":   {change: func(c *cluster.Config) { c.Data = cluster.Data{Train: pipe} }, want: []string{pipe + ": not a regular file"}},
		"hot set in one":   {change: func(c *cluster.Config) { c.Job.HotSet = pipe }, ps: true, want: []string{pipe + ": not a regular file"}},
		"another's":        {change: func(c *cluster.Config) { c.Model.Factors = 6 }, ps: true, want: []string{"hot.libra: its rows have 4 scalars, those of the model 7: build it for this model"}},
		"empty hot set":    {change: func(c *cluster.Config) { c.Job.HotSet = emptyFile }, ps: true, want: []string{emptyFile + " is empty: build it with a larger sample"}},
		"interface":        {change: func(c *cluster.Config) { c.Backend = cluster.BackendAFXDP; c.Workers[0].Interface = "absent0" }, want: []string{"absent0"}},
		"certificates":     {change: func(c *cluster.Config) { c.TLS = cluster.TLS{CA: "no/ca.pem", Cert: "no/cert.pem", Key: "no/key.pem"} }, ps: true, want: []string{"no/c"}},
		"address of hosts": {change: func(c *cluster.Config) { c.Workers[0].Address = netip.MustParseAddr("192.0.2.77") }, want: []string{"192.0.2.77"}},
		"capture":          {change: func(c *cluster.Config) { c.Capture = "/proc/self/none" }, want: []string{"/proc/self/none", "(field capture of the cluster configuration)"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			if test.change != nil {
				test.change(c)
			}
			ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
			defer cancel()
			check := func(process string, err error) {
				t.Helper()
				for _, want := range test.want {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: error %v, want %q in it", process, err, want)
					}
				}
			}
			_, err := RunWorker(ctx, Env{Config: c, Log: testLog(t)}, WorkerOptions{ID: max(test.id, 1)})
			check("worker", err)
			if test.ps {
				_, err := RunServer(ctx, Env{Config: c, Log: testLog(t)})
				check("server", err)
			}
			// Nothing of a worker that did not begin is left.
			if test.change == nil || c.Workers[0].Address.IsLoopback() && c.Backend == cluster.BackendUDP {
				l, err := link.OpenUDP(netip.AddrPortFrom(c.Workers[0].Address, c.Port))
				if err != nil {
					t.Fatalf("the worker's socket is still open: %v", err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A port that another process has is named with its field.
func TestPortsInUse(t *testing.T) {
	c := newCluster(t, 1)
	occupy := func(a netip.AddrPort) (free func()) {
		t.Helper()
		l, err := net.Listen("tcp", a.String())
		if err != nil {
			t.Fatal(err)
		}
		return func() { l.Close() }
	}
	for field, test := range map[string]struct {
		at  netip.AddrPort
		run func() error
	}{
		"switch.control": {c.Switch.Control, func() error { return RunSwitch(soon(t), Env{Config: c, Log: testLog(t)}) }},
		"server.control": {c.Server.Control, func() error {
			_, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)})
			return err
		}},
	} {
		free := occupy(test.at)
		err := test.run()
		if err == nil || !strings.Contains(err.Error(), test.at.String()) || !strings.Contains(err.Error(), "address already in use") || !strings.Contains(err.Error(), "("+field+" in the cluster configuration)") {
			t.Errorf("%s: %v", field, err)
		}
		free()
	}

	// Frames have a port too. The control port is free again after the error.
	l, err := link.OpenUDP(netip.AddrPortFrom(c.Switch.Address, c.Port))
	if err != nil {
		t.Fatal(err)
	}
	if err := RunSwitch(soon(t), Env{Config: c, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("the switch: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	startSwitch(t, c)
	l, err = link.OpenUDP(netip.AddrPortFrom(c.Server.Address, c.Port))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := RunServer(soon(t), Env{Config: c, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("the server: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	mustTrain(t, c) // the job and all ports are free
}

// A switch whose certificates cannot be read does not begin.
func TestSwitchWantsItsCertificates(t *testing.T) {
	c := newCluster(t, 1)
	c.TLS = cluster.TLS{CA: "no/ca.pem", Cert: "no/cert.pem", Key: "no/key.pem"}
	ctx, cancel := context.WithTimeout(t.Context(), eventLimit)
	defer cancel()
	if err := RunSwitch(ctx, Env{Config: c, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), "no/c") {
		t.Errorf("error %v", err)
	}
}

// A server whose interface is no Ethernet device cannot say where frames for it go.
func TestServerNeedsAnEthernetAddress(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	theirs := *c
	theirs.Backend = cluster.BackendAFXDP
	for name, want := range map[string]string{"absent0": "interface absent0: ", "lo": "interface lo has no Ethernet address"} {
		theirs.Server.Interface = name
		if _, err := RunServer(soon(t), Env{Config: &theirs, Log: testLog(t)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	mustTrain(t, c)
}

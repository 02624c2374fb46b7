// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/libra-ina/libra/packer"
	"github.com/libra-ina/libra/ps"
	"github.com/libra-ina/libra/simulation/world"
	"github.com/libra-ina/libra/transport"
)

// server is a parameter server of a life of workers, which sometimes has two or three of them.
type server struct {
	life    *workersLife
	host    *world.Host
	ps      *transport.Server
	store   *ps.Store
	handler *handler
}

// startServers starts the parameter servers.
func (s *workersLife) startServers() error {
	for i := range 1 + max(0, s.Named("servers").IntN(5)-2) {
		v := &server{life: s, host: s.serverHost(i)}
		s.servers = append(s.servers, v)
		var err error
		cfg := ps.Config{Dim: s.plan.dim, Exp: s.plan.exp, Optimizer: ps.Optimizer{LearningRate: learningRate}}
		if v.store, err = ps.New(cfg); err != nil {
			return err
		}
		v.handler = &handler{v}
		l := s.openReceiver(v.host)
		at := transport.ServerConfig{Link: l, Gate: l.Enter, Job: job, Dim: s.plan.dim, Handler: v.handler,
			Index: uint16(i), Sample: s.plan.sample}
		if v.ps, err = transport.NewServer(at); err != nil {
			return err
		}
	}
	return nil
}

func (s *workersLife) serverHost(i int) *world.Host {
	if i == 0 {
		return s.NewHost("server", netip.MustParseAddrPort("10.0.0.1:7000"))
	}
	return s.NewHost(fmt.Sprintf("server %d", i), netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:7000", 2+i)))
}

// rowSplit is the servers' split of the rows.
func (s *workersLife) rowSplit() packer.Split { return packer.Split(len(s.servers)) }

// peerHosts are the hosts that workers talk to.
func (s *workersLife) peerHosts() (hosts []*world.Host) {
	for _, v := range s.servers {
		hosts = append(hosts, v.host)
	}
	return slices.Insert(hosts, 1, s.switched)
}

// serverAt returns the server on a host, or nil.
func (s *workersLife) serverAt(h *world.Host) *server {
	for _, v := range s.servers {
		if v.host == h {
			return v
		}
	}
	return nil
}

// isPeer reports whether workers talk to a host.
func (s *workersLife) isPeer(h *world.Host) bool { return h == s.switched || s.serverAt(h) != nil }

// unreadFrames is the number of frames waiting for the servers and the aggregator.
func (s *workersLife) unreadFrames() (n int) {
	for _, h := range s.peerHosts() {
		n += h.Link().Unread()
	}
	return n
}

// commitStep ends the step of a server and compares the weights. first may add to it before.
func (v *server) commitStep(a *world.Actor, resume bool, first func() error) (err error) {
	s := v.life
	a.Do("Server.Do")
	called := v.ps.Do(context.Background(), func() {
		if err = first(); err != nil {
			return
		}
		pending := map[int][]int64{}
		for key, sums := range v.store.Pending() {
			pending[s.ledger.index[key]] = slices.Clone(sums)
		}
		v.store.Commit()
		s.ledger.commitRows(pending)
		row := make([]float32, s.plan.dim)
		for at := range pending {
			v.store.Read(s.ledger.keys[at:][:1], row)
			if want := s.ledger.weights[at*s.plan.dim:][:s.plan.dim]; !equal(row, want) {
				s.Fail("key %d has the weights %v, not %v", s.ledger.keys[at], row, want)
			}
		}
		if resume {
			v.restoreStore()
		}
	})
	a.Yield("applied")
	if called != nil {
		return called
	}
	return err
}

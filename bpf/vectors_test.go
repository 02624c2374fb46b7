// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
	"net/netip"
	"testing"

	"github.com/libra-ina/libra/aggregator/conformance"
	"github.com/libra-ina/libra/aggregator/vectors"
	"github.com/libra-ina/libra/wire"
)

// The vectors define the behaviour of every data plane without the model.
func TestReplaysVectors(t *testing.T) {
	needPrivileges(t)
	files, err := vectors.Load("../aggregator/testdata/vectors")
	if err != nil {
		t.Fatal(err)
	}
	loaded := map[netip.Addr]*device{}
	for _, f := range files {
		if loaded[f.Address] == nil {
			loaded[f.Address] = openWith(t, Options{Address: f.Address, Budget: -1})
		}
		d := loaded[f.Address]
		t.Run(f.Name, func(t *testing.T) {
			inNamespace(t, 2, func() {
				d.forget(t)
				d.usePorts(t, "port0", "host0", "port1")
				for _, r := range f.Routes {
					d.route(t, []conformance.Route{{Host: wire.Endpoint{MAC: r.MAC}, Port: r.Port}})
				}
				if err := f.Replay(d); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

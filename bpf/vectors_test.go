// SPDX-License-Identifier: Apache-2.0

//go:build linux

package bpf

import (
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
	for _, f := range files {
		t.Run(f.Name, func(t *testing.T) {
			inNamespace(t, 2, func() {
				d := openWith(t, Options{Address: f.Address, Budget: -1})
				defer d.Close()
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

// SPDX-License-Identifier: Apache-2.0

package control

import (
	"testing"

	"google.golang.org/grpc"

	"github.com/libra-ina/libra/control/access"
	"github.com/libra-ina/libra/internal/test/grpctest"
)

type client = grpctest.Client

// network carries control connections in memory.
type network struct{ *grpctest.Network }

// newNetwork starts a service on its own network.
func newNetwork(t *testing.T, sec access.Security, register func(*grpc.Server)) *network {
	t.Helper()
	s := access.NewServer(sec)
	register(s)
	return &network{grpctest.Serve(t, s)}
}

// dial connects from a host.
func (n *network) dial(t *testing.T, sec access.Security, from string, options ...grpc.DialOption) *client {
	t.Helper()
	return n.Dial(t, from, append(sec.DialOptions("192.0.2.1", access.EitherService()), options...)...)
}

// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/libra-ina/libra/agent/agentproto"
)

// Connections without a session are limited per user: a user at the limit does not affect others,
// and a connection that ends makes room for a new one.
func TestHandshakesOfOneUserKeepOutNobodyElse(t *testing.T) {
	a := &Agent{handshakes: map[*net.UnixConn]pendingHandshake{}}
	connect := func(user uint32) (*net.UnixConn, error) {
		conn := new(net.UnixConn)
		return conn, a.addHandshake(conn, user)
	}
	const one, other = 1 << 20, 1<<20 + 1 // users
	var last *net.UnixConn
	for i := range minHandshakeLimit {
		var err error
		if last, err = connect(one); err != nil {
			t.Fatalf("connection %d of a user: %v", i, err)
		}
		if i%2 == 0 {
			continue
		}
		if _, err = connect(other); err != nil {
			t.Fatalf("beside %d connections of another user: %v", i+1, err)
		}
	}
	if _, err := connect(one); !errors.Is(err, agentproto.Clients) || !strings.Contains(err.Error(), "64 connections of user 1048576") {
		t.Errorf("one too many: %v", err)
	}
	if _, err := connect(other); err != nil {
		t.Errorf("when another user is at the limit: %v", err)
	}
	a.removeHandshake(last)
	if _, err := connect(one); err != nil {
		t.Errorf("when one has ended: %v", err)
	}
}

// A user may have as many connections without a session as all jobs together admit clients, if
// these are more than the least limit.
func TestHandshakeLimitFollowsJobs(t *testing.T) {
	a := &Agent{handshakes: map[*net.UnixConn]pendingHandshake{}, jobs: map[string]*job{
		"a": {cfg: Job{Limits: Limits{Clients: 40}}}, "b": {cfg: Job{Limits: Limits{Clients: 50}}},
	}}
	for i := range 90 {
		if err := a.addHandshake(new(net.UnixConn), 0); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	if err := a.addHandshake(new(net.UnixConn), 0); !errors.Is(err, agentproto.Clients) {
		t.Errorf("one too many: %v", err)
	}
}

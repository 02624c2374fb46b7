// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/libra-ina/libra/agent"
)

// A stopped agent, or another program, accepts connections but does not answer.
func TestAskOfAMuteAgent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "mute.sock")
	mute, err := net.Listen("unixpacket", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = agent.Ask(ctx, socket)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "agent at "+socket+" accepts connections but does not answer") || !strings.Contains(err.Error(), "is it stopped") {
		t.Errorf("%v", err)
	}
}

// Nor does an agent answer that ends during a request.
func TestAskOfAnAgentThatCloses(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "ends.sock")
	ends, err := net.Listen("unixpacket", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ends.Close()
	go func() {
		if conn, err := ends.Accept(); err == nil {
			_, _ = conn.Read(make([]byte, 1024)) // otherwise the end would be a reset
			_ = conn.Close()
		}
	}()
	if _, err := agent.Ask(t.Context(), socket); err == nil || err.Error() != "agent at "+socket+": it has closed the connection" {
		t.Errorf("%v", err)
	}
}

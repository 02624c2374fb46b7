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

// An agent that is stopped, or a program that is none, takes connections and says nothing.
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
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "agent at "+socket+" takes connections but does not answer") || !strings.Contains(err.Error(), "is it stopped") {
		t.Errorf("%v", err)
	}
}

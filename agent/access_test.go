// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/libra-ina/libra/agent"
)

// An agent that does not run as root lets root and its own user read its statistics and what
// clients push.
func TestRootAsksAnotherUsersAgent(t *testing.T) {
	needsRoot(t)
	dir := shortDir(t)
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "agent.sock")
	startAgent(t, socket, func(cmd *exec.Cmd) { asNobody(t, cmd) })
	s, err := agent.Ask(within(t), socket)
	if err != nil || len(s.Jobs) != 1 || s.Jobs[0].Name != jobName {
		t.Errorf("the statistics: %+v, %v", s, err)
	}
	until, stop := context.WithCancel(t.Context())
	stop()
	if l, err := agent.Learn(within(t), until, socket, jobName, 10); err != nil || l.Job != jobName {
		t.Errorf("what clients push: %+v, %v", l, err)
	}
}

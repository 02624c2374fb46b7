// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"testing"
	"time"

	"github.com/libra-ina/libra/internal/agentproto"
	"github.com/libra-ina/libra/internal/sys"
)

// The worker looks at the rings before it sleeps: clients need not wake it as long.
func TestLooksBeforeSleep(t *testing.T) {
	mem, file, err := agentproto.NewMemory(agentproto.LayoutOf(8, 4096))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = mem.Close(), file.Close() }()
	j := &job{idle: sys.Look{Limit: time.Hour}}
	j.sessions = []*session{{job: j, mem: mem}}
	for range 3 {
		if j.Turn() || j.Sleep() || mem.AgentSleeps.Load() != 0 {
			t.Fatal("sleeps at once")
		}
	}
	j.idle = sys.Look{}
	if !j.Sleep() || mem.AgentSleeps.Load() != 1 {
		t.Error("does not sleep after the look")
	}
}

// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/libra-ina/libra/internal/test/bedtest"
)

// A process that has ended has left nothing at the context that it was started with, which may last
// much longer.
func TestProcessesLeaveTheirContext(t *testing.T) {
	c := newCluster(t, 1)
	startSwitch(t, c)
	server, worker := bedtest.NewContext(t), bedtest.NewContext(t)
	ended := make(chan error, 1)
	go func() {
		_, err := RunServer(server, Env{Config: c, Log: testLog(t).With("process", "ps")})
		ended <- err
	}()
	if _, err := RunWorker(worker, Env{Config: c, Log: testLog(t).With("process", "worker 1")}, WorkerOptions{ID: 1}); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for name, ctx := range map[string]bedtest.Context{"server": server, "worker": worker} {
		if n := ctx.Waiting(); n != 0 {
			t.Errorf("the %s leaves %d that wait for the end of its context", name, n)
		}
	}
}

// Nor do those that could not begin, or failed.
func TestProcessesThatFailLeaveTheirContext(t *testing.T) {
	c := newCluster(t, 1)
	c.Server.Checkpoint = "/proc/self/weights.libra"
	startSwitch(t, c)
	server, worker, service := bedtest.NewContext(t), bedtest.NewContext(t), bedtest.NewContext(t)
	if _, err := RunServer(server, Env{Config: c, Log: testLog(t)}); err == nil {
		t.Error("a server without a place for its checkpoint has trained")
	}
	theirs := *c
	theirs.Capture = "/proc/self/none"
	if _, err := RunWorker(worker, Env{Config: &theirs, Log: testLog(t)}, WorkerOptions{ID: 1}); err == nil {
		t.Error("a worker without a place for its capture has trained")
	}
	other := newCluster(t, 1)
	if err := RunSwitch(service, Env{Config: other, Machine: Machine{Listen: brokenListen}, Log: testLog(t)}); err == nil {
		t.Error("a switch without a control service has served")
	}
	for name, ctx := range map[string]bedtest.Context{"server": server, "worker": worker, "switch": service} {
		if n := ctx.Waiting(); n != 0 {
			t.Errorf("the %s leaves %d that wait for the end of its context", name, n)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/libra-ina/libra/cluster"
)

// All processes of a demo have the policy SCHED_BATCH.
func TestDemoDoesNotInterruptItself(t *testing.T) {
	t.Parallel()
	cmd, stderr := trainCluster(t, nil, "demo", "-v", "--backend", cluster.BackendUDP, "--baseline", "none",
		"--rows", "20000", "--epochs", "1000")
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	processes := []string{strconv.Itoa(cmd.Process.Pid)}
	for _, list := range lists {
		children, _ := os.ReadFile(list) // an error: the thread has ended
		processes = append(processes, strings.Fields(string(children))...)
	}
	for _, p := range processes {
		pid, err := strconv.Atoi(p)
		if err != nil {
			t.Fatal(err)
		}
		if attr, err := unix.SchedGetAttr(pid, 0); err != nil || attr.Policy != unix.SCHED_BATCH {
			t.Errorf("process %d has the policy %+v: %v", pid, attr, err)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()            // its exit code reports the interrupt
	if len(processes) < 1+6 { // switch, server and four workers
		t.Errorf("processes %v\n%s", processes, stderr.text.String())
	}
}
